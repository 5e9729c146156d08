import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.connector.source.lib.NumberSequenceSource;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * Counts a number of records, the first argument, by key, with objects reused. The second argument is the interval of
 * checkpoints in milliseconds; 0: none.
 */
public final class KeyedCount {
    private KeyedCount() {}

    /** Submits the job. */
    public static void main(String[] arguments) throws Exception {
        long count = Long.parseLong(arguments[0]);
        StreamExecutionEnvironment environment =
                StreamExecutionEnvironment.getExecutionEnvironment();
        environment.getConfig().enableObjectReuse();
        long interval = Long.parseLong(arguments[1]);
        if (interval > 0) {
            environment.enableCheckpointing(interval);
        }
        Numbers.countByKey(
                Numbers.records(
                        environment.fromSource(
                                new NumberSequenceSource(0, count - 1),
                                WatermarkStrategy.noWatermarks(),
                                "numbers")));
        environment.executeAsync("keyed-count");
    }
}
