import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import org.apache.avro.specific.SpecificRecordBase;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import sessionary.common.Envelope;
import sessionary.events.SessionCreated;
import sessionary.records.Tombstone;
import sessionary.records.SessionState;

/**
 * The full job for one partition: each record moves the clock, fires what is due, and is judged.
 *
 * <p>The store holds rows as Avro, by session key, and the clock under a key of its own. Timers are made from the rows
 * when the partition is opened. A record without a key is a tick, which only moves the clock.
 */
final class SessionProcessor implements Processor<byte[], byte[], byte[], byte[]> {
    static final String STORE = "sessions";
    private static final byte[] CLOCK_KEY = "\0position".getBytes(StandardCharsets.ISO_8859_1);
    private static final int CLOCK_BYTES = 2 * Long.BYTES;

    private final RecordCodec codec;
    private final int partitions;
    private final Outputs outputs = new Outputs();
    private final SessionChanges changes;
    private final SessionJudge judge;
    private final Timers timers = new Timers();
    private final DecodedRows decoded = new DecodedRows();
    private ProcessorContext<byte[], byte[]> context;
    private KeyValueStore<byte[], byte[]> rows;
    private LogClock clock;
    private long liveRows;

    SessionProcessor(RecordCodec codec, TransitionTable table, int partitions) {
        this.codec = codec;
        this.partitions = partitions;
        changes = new SessionChanges(table, outputs);
        judge = new SessionJudge(table, outputs, changes);
    }

    @Override
    public void init(ProcessorContext<byte[], byte[]> given) {
        context = given;
        rows = given.getStateStore(STORE);
        byte[] stored = rows.get(CLOCK_KEY);
        var times = stored == null ? ByteBuffer.allocate(CLOCK_BYTES) : ByteBuffer.wrap(stored);
        clock = new LogClock(times.getLong(), times.getLong());
        try (var all = rows.all()) {
            while (all.hasNext()) {
                var entry = all.next();
                if (entry.value.length != CLOCK_BYTES) {
                    var row = codec.decode(entry.value);
                    liveRows += row instanceof SessionState ? 1 : 0;
                    timers.schedule(Bytes.wrap(entry.key), dueMs(row));
                }
            }
        }
    }

    @Override
    public void process(Record<byte[], byte[]> record) {
        if (clock.advanceTo(record.timestamp(), liveRows > 0)) {
            var times = ByteBuffer.allocate(CLOCK_BYTES).putLong(clock.nowMs()).putLong(clock.outageGraceUntilMs());
            rows.put(CLOCK_KEY, times.array());
        }
        outputs.begin(record, context.recordMetadata().orElseThrow(), clock.nowMs());
        fireDue();
        if (record.key() != null) {
            judgeRecord(record);
        }
        for (var output : outputs.found()) {
            byte[] value = codec.encode(output.record());
            context.forward(new Record<>(output.key(), value, record.timestamp()), output.topic());
        }
    }

    private void fireDue() {
        if (clock.isInOutageGrace()) {
            return;
        }
        for (var due = nextDue(); due != null; due = nextDue()) {
            var row = load(due.key());
            if (row instanceof SessionState session) {
                var after = changes.fire(due.key().get(), session, due.dueMs());
                liveRows -= after == session ? 0 : 1;
                keep(due.key(), after);
                timers.schedule(due.key(), dueMs(after));
            } else {
                decoded.remove(due.key());
                rows.delete(due.key().get());
            }
        }
    }

    private Timers.Entry nextDue() {
        return timers.nextDue(key -> dueMs(load(key)), clock.nowMs());
    }

    private void judgeRecord(Record<byte[], byte[]> record) {
        var event = codec.decode(record.value());
        var key = Bytes.wrap(record.key());
        if (event == null || !(event.get(0) instanceof Envelope envelope)) {
            outputs.addRejected("undecodable", "the value is no event of a known schema", null);
            return;
        }
        String named = envelope.getTenantId() + ":" + envelope.getSessionId();
        if (!named.equals(new String(record.key(), StandardCharsets.UTF_8))) {
            String detail = "session " + named + " under another key";
            judge.rejectUnknown(record.key(), envelope, "key_mismatch", detail);
            return;
        }
        var row = load(key);
        if (row instanceof SessionState session) {
            var before = session.getState();
            if (judge.judge(record.key(), session, event, envelope) != null) {
                keep(key, session);
                if (session.getState() != before || !SessionChanges.isOnlyPostponed(session)) {
                    timers.schedule(key, dueMs(session));
                }
            }
        } else if (row instanceof Tombstone tombstone) {
            if (judge.rejectArchived(record.key(), tombstone, envelope)) {
                keep(key, tombstone);
            }
        } else {
            create(key, event, envelope);
        }
    }

    private void create(Bytes key, SpecificRecordBase event, Envelope envelope) {
        int home = Utils.toPositive(Utils.murmur2(key.get())) % partitions;
        if (home != context.taskId().partition()) {
            judge.rejectUnknown(key.get(), envelope, "wrong_partition", "this key belongs to partition " + home);
        } else if (event instanceof SessionCreated created) {
            var row = judge.create(key.get(), created);
            if (row != null) {
                liveRows += 1;
                keep(key, row);
                timers.schedule(key, dueMs(row));
            }
        } else {
            String detail = envelope.getEventType() + " before session_created";
            judge.rejectUnknown(key.get(), envelope, "unknown_session", detail);
        }
    }

    private SpecificRecordBase load(Bytes key) {
        var row = decoded.get(key);
        if (row == null) {
            byte[] stored = rows.get(key.get());
            if (stored != null) {
                row = codec.decode(stored);
                decoded.put(key, row);
            }
        }
        return row;
    }

    private void keep(Bytes key, SpecificRecordBase row) {
        decoded.put(key, row);
        rows.put(key.get(), codec.encode(row));
    }

    private long dueMs(SpecificRecordBase row) {
        if (row instanceof SessionState session) {
            return changes.dueMs(session);
        }
        return row instanceof Tombstone tombstone ? tombstone.getExpiresAt() : Timers.NEVER;
    }
}
