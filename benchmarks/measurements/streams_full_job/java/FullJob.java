import java.io.File;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.processor.api.ProcessorSupplier;
import org.apache.kafka.streams.state.Stores;

/**
 * The full job of a processor in Kafka Streams: decode, judge, state, timers, audit, exactly once.
 *
 * <p>Arguments: bootstrap servers, application id, events topic, prefix of the output topics, partitions, store
 * ("memory" or "rocksdb"), folder for the state, commit interval (ms), file of schemas, file of the table. Runs until
 * SIGTERM.
 */
public final class FullJob {
    private static final long CACHE_BYTES = 256L << 20;

    private static Topology topology(
        String events, String prefix, boolean inMemory, ProcessorSupplier<byte[], byte[], byte[], byte[]> supplier
    ) {
        var serde = Serdes.ByteArray();
        var name = SessionProcessor.STORE;
        var store = inMemory ? Stores.inMemoryKeyValueStore(name) : Stores.persistentKeyValueStore(name);
        // With the cache a row is one changelog record per commit, however many events changed it, as in our processor.
        var sessions = Stores.keyValueStoreBuilder(store, serde, serde)
            .withLoggingEnabled(Map.of())
            .withCachingEnabled();
        var topology = new Topology()
            .addSource("events", serde.deserializer(), serde.deserializer(), events)
            .addProcessor("judge", supplier, "events")
            .addStateStore(sessions, "judge");
        for (String output : new String[] {Outputs.AUDIT, Outputs.CLEANUP, Outputs.REJECTED}) {
            topology.addSink(output, prefix + output, serde.serializer(), serde.serializer(), "judge");
        }
        return topology;
    }

    private static Properties settings(String[] given) {
        var settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, given[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, given[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, given[6]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, given[7]);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 1);
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, CACHE_BYTES);
        settings.put(StreamsConfig.producerPrefix(ProducerConfig.COMPRESSION_TYPE_CONFIG), "lz4");
        settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        return settings;
    }

    public static void main(String[] given) throws Exception {
        int partitions = Integer.parseInt(given[4]);
        var schemas = new File(given[8]);
        var table = new TransitionTable(new File(given[9]));
        ProcessorSupplier<byte[], byte[], byte[], byte[]> supplier =
            () -> new SessionProcessor(newCodec(schemas), table, partitions);
        var topology = topology(given[2], given[3], given[5].equals("memory"), supplier);
        var streams = new KafkaStreams(topology, settings(given));
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }

    private static RecordCodec newCodec(File schemas) {
        try {
            return new RecordCodec(schemas);
        } catch (java.io.IOException | ReflectiveOperationException error) {
            throw new IllegalStateException("no classes for " + schemas, error);
        }
    }
}
