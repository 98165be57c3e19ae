import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * The keyed count in Kafka Streams: per event one changelog record and one output "count value", exactly once.
 *
 * <p>Arguments: bootstrap servers, application id, source topic, output topic, store ("memory" or "rocksdb"), folder.
 * Runs until SIGTERM. Left at its defaults: batches, buffers, fetches, and the 100 ms commit of exactly-once.
 */
public final class KeyedCount {
    private static final String STORE = "counts";

    private static final class Count implements Processor<byte[], byte[], byte[], byte[]> {
        private ProcessorContext<byte[], byte[]> context;
        private KeyValueStore<byte[], Long> counts;

        @Override
        public void init(ProcessorContext<byte[], byte[]> given) {
            context = given;
            counts = given.getStateStore(STORE);
        }

        @Override
        public void process(Record<byte[], byte[]> record) {
            Long before = counts.get(record.key());
            long count = before == null ? 1 : before + 1;
            counts.put(record.key(), count);
            context.forward(record.withValue(output(count, record.value())));
        }

        private static byte[] output(long count, byte[] value) {
            byte[] digits = Long.toString(count).getBytes(StandardCharsets.ISO_8859_1);
            byte[] whole = new byte[digits.length + 1 + value.length];
            System.arraycopy(digits, 0, whole, 0, digits.length);
            whole[digits.length] = ' ';
            System.arraycopy(value, 0, whole, digits.length + 1, value.length);
            return whole;
        }
    }

    private static Topology topology(String source, String output, boolean inMemory) {
        var serde = Serdes.ByteArray();
        var store = inMemory ? Stores.inMemoryKeyValueStore(STORE) : Stores.persistentKeyValueStore(STORE);
        // Caching would leave out changelog records of keys that come again soon.
        var counts = Stores.keyValueStoreBuilder(store, serde, Serdes.Long())
            .withLoggingEnabled(Map.of())
            .withCachingDisabled();
        return new Topology()
            .addSource("source", serde.deserializer(), serde.deserializer(), source)
            .addProcessor("count", Count::new, "source")
            .addStateStore(counts, "count")
            .addSink("output", output, serde.serializer(), serde.serializer(), "count");
    }

    private static Properties settings(String bootstrapServers, String id, String folder) {
        var settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrapServers);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, id);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, folder);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 1);
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        return settings;
    }

    public static void main(String[] given) {
        var topology = topology(given[2], given[3], given[4].equals("memory"));
        var streams = new KafkaStreams(topology, settings(given[0], given[1], given[5]));
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse
                .SHUTDOWN_CLIENT;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }
}
