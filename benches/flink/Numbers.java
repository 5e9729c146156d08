import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.Collector;

/** The records that Tanist's datagen makes, and what both jobs do with them: count by key, and discard each count. */
final class Numbers {
    /** Keys and values are drawn from zero up to this. */
    private static final long RANGE = 1000;

    private Numbers() {}

    /** Records (sequence number, key, value) of sequence numbers. */
    static DataStream<Tuple3<Long, Long, Long>> records(DataStream<Long> numbers) {
        return numbers.map(new Make()).returns(Types.TUPLE(Types.LONG, Types.LONG, Types.LONG));
    }

    /** Emits (key, count) for each record, into nothing. */
    static void countByKey(DataStream<Tuple3<Long, Long, Long>> records) {
        records.keyBy(record -> record.f1, Types.LONG)
                .process(new Count())
                .returns(Types.TUPLE(Types.LONG, Types.LONG))
                .sinkTo(new DiscardingSink<>());
    }

    /** A number that looks random and depends on the index alone: the finalizer of splitmix64, with seed 0. */
    static long draw(long index) {
        long bits = index * 0x9e3779b97f4a7c15L;
        bits = (bits ^ (bits >>> 30)) * 0xbf58476d1ce4e5b9L;
        bits = (bits ^ (bits >>> 27)) * 0x94d049bb133111ebL;
        return bits ^ (bits >>> 31);
    }

    /** The number below RANGE that a random number stands for: the share of it that the random number is of 2^64. */
    static long below(long random) {
        // The upper half of the product of two unsigned numbers.
        return Math.multiplyHigh(random, RANGE) + ((random >> 63) & RANGE);
    }

    private static final class Make implements MapFunction<Long, Tuple3<Long, Long, Long>> {
        private static final long serialVersionUID = 1;

        @Override
        public Tuple3<Long, Long, Long> map(Long sequence) {
            long key = below(draw(2 * sequence));
            long value = below(draw(2 * sequence + 1));
            return Tuple3.of(sequence, key, value);
        }
    }

    private static final class Count
            extends KeyedProcessFunction<Long, Tuple3<Long, Long, Long>, Tuple2<Long, Long>> {
        private static final long serialVersionUID = 1;

        private transient ValueState<Long> count;

        @Override
        public void open(OpenContext context) {
            count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Types.LONG));
        }

        @Override
        public void processElement(
                Tuple3<Long, Long, Long> record, Context context, Collector<Tuple2<Long, Long>> out)
                throws Exception {
            Long before = count.value();
            long now = before == null ? 1 : before + 1;
            count.update(now);
            out.collect(Tuple2.of(record.f1, now));
        }
    }
}
