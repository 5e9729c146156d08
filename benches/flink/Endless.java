import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.connector.source.lib.NumberSequenceSource;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/** Counts records by key at a rate, the first argument, and never ends. With a checkpoint each second, as recoverable jobs have. */
public final class Endless {
    private static final long CHECKPOINT_INTERVAL_MS = 1000;

    private Endless() {}

    /** Submits the job. */
    public static void main(String[] arguments) throws Exception {
        long rate = Long.parseLong(arguments[0]);
        StreamExecutionEnvironment environment =
                StreamExecutionEnvironment.getExecutionEnvironment();
        environment.enableCheckpointing(CHECKPOINT_INTERVAL_MS);
        Numbers.countByKey(
                Numbers.records(
                        environment
                                .fromSource(
                                        new NumberSequenceSource(0, Long.MAX_VALUE),
                                        WatermarkStrategy.noWatermarks(),
                                        "numbers")
                                .map(new Throttle(rate))));
        environment.executeAsync("endless");
    }

    /** Limits the number of records per second, over all subtasks. */
    private static final class Throttle extends RichMapFunction<Long, Long> {
        private static final long serialVersionUID = 1;

        private final long rate;
        private long due;

        Throttle(long rate) {
            this.rate = rate;
        }

        @Override
        public Long map(Long number) throws InterruptedException {
            int subtasks = getRuntimeContext().getTaskInfo().getNumberOfParallelSubtasks();
            long now = System.nanoTime();
            due = Math.max(due, now - 1_000_000_000L) + 1_000_000_000L * subtasks / rate;
            // Records that are due within a few milliseconds are sent together.
            long early = (due - now) / 1_000_000L;
            if (early >= 5) {
                Thread.sleep(early);
            }
            return number;
        }
    }
}
