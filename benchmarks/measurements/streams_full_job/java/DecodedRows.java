import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.avro.specific.SpecificRecordBase;
import org.apache.kafka.common.utils.Bytes;

/** The rows that were used last, so that the next event of a busy session need not decode its row. */
final class DecodedRows extends LinkedHashMap<Bytes, SpecificRecordBase> {
    private static final long serialVersionUID = 1;
    private static final int ROWS_MAX = 10_000;

    DecodedRows() {
        super(16, 0.75f, true);
    }

    @Override
    protected boolean removeEldestEntry(Map.Entry<Bytes, SpecificRecordBase> eldest) {
        return size() > ROWS_MAX;
    }
}
