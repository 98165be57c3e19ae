import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.HashMap;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.SchemaNormalization;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.io.EncoderFactory;
import org.apache.avro.specific.SpecificDatumReader;
import org.apache.avro.specific.SpecificDatumWriter;
import org.apache.avro.specific.SpecificRecordBase;

/** Bytes to records of the generated classes and back, in Avro's single-object encoding. Not thread-safe. */
final class RecordCodec {
    private static final byte[] MARK = {(byte) 0xC3, 0x01};
    private static final int HEADER_BYTES = 10;

    private record Format(byte[] header, SpecificDatumWriter<SpecificRecordBase> writer) {}

    private final Map<Long, SpecificDatumReader<SpecificRecordBase>> readers = new HashMap<>();
    private final Map<Class<?>, Format> formats = new HashMap<>();
    private final ByteArrayOutputStream buffer = new ByteArrayOutputStream(4096);
    private BinaryDecoder decoder;
    private BinaryEncoder encoder;

    /** @param schemas a file of schemas by full name; each has its generated class */
    RecordCodec(File schemas) throws IOException, ReflectiveOperationException {
        for (var names = new ObjectMapper().readTree(schemas).fieldNames(); names.hasNext(); ) {
            @SuppressWarnings("unchecked")
            var recordClass = (Class<SpecificRecordBase>) Class.forName(names.next());
            Schema schema = recordClass.getDeclaredConstructor().newInstance().getSchema();
            long fingerprint = SchemaNormalization.parsingFingerprint64(schema);
            var header = ByteBuffer.allocate(HEADER_BYTES).order(ByteOrder.LITTLE_ENDIAN);
            header.put(MARK).putLong(fingerprint);
            readers.put(fingerprint, new SpecificDatumReader<>(recordClass));
            formats.put(recordClass, new Format(header.array(), new SpecificDatumWriter<>(recordClass)));
        }
    }

    /** Returns the record; null if the bytes are not of a known schema. */
    SpecificRecordBase decode(byte[] value) {
        if (value == null || value.length < HEADER_BYTES || value[0] != MARK[0] || value[1] != MARK[1]) {
            return null;
        }
        var reader = readers.get(ByteBuffer.wrap(value).order(ByteOrder.LITTLE_ENDIAN).getLong(MARK.length));
        if (reader == null) {
            return null;
        }
        decoder = DecoderFactory.get().binaryDecoder(value, HEADER_BYTES, value.length - HEADER_BYTES, decoder);
        try {
            return reader.read(null, decoder);
        } catch (IOException error) {
            return null;
        }
    }

    byte[] encode(SpecificRecordBase record) {
        var format = formats.get(record.getClass());
        buffer.reset();
        buffer.writeBytes(format.header);
        encoder = EncoderFactory.get().binaryEncoder(buffer, encoder);
        try {
            format.writer.write(record, encoder);
            encoder.flush();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        return buffer.toByteArray();
    }
}
