import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import org.apache.avro.specific.SpecificRecordBase;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import sessionary.common.Envelope;
import sessionary.common.SessionStateName;
import sessionary.events.SessionCreated;
import sessionary.records.MessageState;
import sessionary.records.SessionState;
import sessionary.records.Tombstone;
import sessionary.records.ToolCallState;

/**
 * The full job for one partition: each record moves the clock, fires what is due, and is judged.
 *
 * <p>The store holds rows as Avro, by their keys, and the clock under a key of its own. Timers are made from the rows
 * when the partition is opened. A record without a key is a tick, which only moves the clock.
 */
final class SessionProcessor implements Processor<byte[], byte[], byte[], byte[]>, Children.Rows {
    static final String STORE = "sessions";
    private static final byte[] CLOCK_KEY = "\0position".getBytes(StandardCharsets.ISO_8859_1);
    private static final int CLOCK_BYTES = 2 * Long.BYTES;
    /** Faults of records whose event can be read, and is named by what reports them. */
    private static final Set<String> OF_EVENTS = Set.of("foreign_tenant", "key_mismatch");

    private final RecordCodec codec;
    private final int partitions;
    private final Outputs outputs;
    private final SessionChanges changes;
    private final Children children;
    private final ValueBounds bounds;
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
        outputs = new Outputs(codec);
        changes = new SessionChanges(table, outputs);
        children = new Children(this, outputs);
        bounds = new ValueBounds(table.bounds());
        judge = new SessionJudge(table, outputs, changes, children, bounds);
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
                    liveRows += isLive(row) ? 1 : 0;
                    long dueMs = dueMs(row, 0);
                    if (dueMs != Timers.NEVER) {
                        timers.schedule(Bytes.wrap(entry.key), dueMs);
                    }
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
        outputs.begin(record, context.recordMetadata().orElseThrow(), clock.nowMs(), clock.outageEndMs());
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
                var after = changes.fire(due.key().get(), session, due.dueMs(), clock.outageEndMs());
                keep(due.key(), after);
                if (after != session) {
                    dropChildren(due.key());
                }
            } else if (row instanceof ToolCallState call) {
                children.fire(due.key(), call);
            } else {
                drop(due.key());
            }
        }
    }

    private Timers.Entry nextDue() {
        return timers.nextDue(key -> dueMs(load(key), clock.outageEndMs()), clock.nowMs());
    }

    private void judgeRecord(Record<byte[], byte[]> record) {
        var key = Bytes.wrap(record.key());
        var row = load(key);
        var live = row instanceof SessionState found ? found : null;
        var session = live == null ? SessionKey.parse(record.key()) : SessionKey.of(live);
        var event = codec.decode(record.value());
        var envelope = event != null && event.get(0) instanceof Envelope known ? known : null;
        var fault = findFault(record.key(), session, event, envelope);
        if (fault != null) {
            boolean isBeat = envelope != null && envelope.getEventType().equals("heartbeat");
            boolean isNamed = OF_EVENTS.contains(fault.reason()) || isBeat && session == SessionKey.NONE;
            rejectFaulty(key, row, session, isNamed ? envelope : null, fault);
        } else if (live != null) {
            var before = live.getState();
            if (judge.judge(record.key(), live, event, envelope) != null) {
                keepChanged(key, live, before);
            }
        } else if (row instanceof Tombstone) {
            var objection = new Guards.Objection("session_archived", "the session is archived");
            judge.rejectUnkept(record.key(), session, SessionStateName.Archived, envelope, objection);
        } else {
            create(key, session, event, envelope);
        }
    }

    private void rejectFaulty(
        Bytes key, SpecificRecordBase row, SessionKey session, Envelope envelope, Guards.Objection fault
    ) {
        if (!(row instanceof SessionState live)) {
            var state = row instanceof Tombstone ? SessionStateName.Archived : SessionStateName.UNKNOWN;
            judge.rejectUnkept(key.get(), session, state, envelope, fault);
        } else if (judge.reject(key.get(), live, envelope, fault) != null) {
            keepChanged(key, live, live.getState());
        }
    }

    /** Returns why a record cannot be taken as an event of the session that its key names, or null. */
    private Guards.Objection findFault(byte[] key, SessionKey session, SpecificRecordBase event, Envelope envelope) {
        if (session == SessionKey.NONE) {
            String text = new String(key, StandardCharsets.UTF_8);
            return new Guards.Objection("bad_key", "key b'" + text + "' is not tenant_id:session_id");
        }
        if (event == null) {
            return new Guards.Objection("undecodable", "the value is no event of a known schema");
        }
        if (envelope == null) {
            return new Guards.Objection("bad_key", "a tick has no key");
        }
        String wrong = bounds.findLongText(envelope);
        if (wrong != null) {
            return new Guards.Objection("invalid_value", wrong);
        }
        if (!envelope.getTenantId().equals(session.tenantId())) {
            String detail = "tenant '" + envelope.getTenantId() + "' under the key of '" + session.tenantId() + "'";
            return new Guards.Objection("foreign_tenant", detail);
        }
        if (!envelope.getSessionId().equals(session.sessionId())) {
            String detail = "session '" + envelope.getSessionId() + "' under the key of '" + session.sessionId() + "'";
            return new Guards.Objection("key_mismatch", detail);
        }
        return null;
    }

    private void create(Bytes key, SessionKey session, SpecificRecordBase event, Envelope envelope) {
        int home = Utils.toPositive(Utils.murmur2(key.get())) % partitions;
        Guards.Objection objection;
        if (home != context.taskId().partition()) {
            String detail = "this key belongs to partition " + home + ": the producer's partitioner is not murmur2";
            objection = new Guards.Objection("wrong_partition", detail);
        } else if (event instanceof SessionCreated created) {
            var row = judge.create(key.get(), session, created);
            if (row != null) {
                keep(key, row);
            }
            return;
        } else {
            String detail = envelope.getEventType() + " before session_created";
            objection = new Guards.Objection("unknown_session", detail);
        }
        judge.rejectUnkept(key.get(), session, SessionStateName.UNKNOWN, envelope, objection);
    }

    @Override
    public SpecificRecordBase load(Bytes key) {
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

    @Override
    public void keep(Bytes key, SpecificRecordBase row) {
        // A row that changes was loaded before.
        liveRows += (isLive(row) ? 1 : 0) - (isLive(decoded.get(key)) ? 1 : 0);
        write(key, row);
        long dueMs = dueMs(row, 0);
        if (dueMs != Timers.NEVER) {
            timers.schedule(key, dueMs);
        }
    }

    /** Writes a session after an event; most events leave its timer, which is early then. */
    private void keepChanged(Bytes key, SessionState row, SessionStateName before) {
        if (row.getState() == before && SessionChanges.isOnlyPostponed(row)) {
            write(key, row);
        } else {
            keep(key, row);
        }
    }

    private void write(Bytes key, SpecificRecordBase row) {
        if (!(row instanceof MessageState)) { // no event asks for a turn
            decoded.put(key, row);
        }
        rows.put(key.get(), codec.encode(row));
    }

    private void drop(Bytes key) {
        decoded.remove(key);
        rows.delete(key.get());
    }

    private void dropChildren(Bytes sessionKey) {
        byte[][] bounds = Children.keysOf(sessionKey.get());
        List<Bytes> found = new ArrayList<>();
        try (var below = rows.range(bounds[0], bounds[1])) {
            below.forEachRemaining(entry -> found.add(Bytes.wrap(entry.key)));
        }
        for (var key : found) {
            liveRows -= isLive(load(key)) ? 1 : 0;
            drop(key);
        }
    }

    private static boolean isLive(SpecificRecordBase row) {
        return row instanceof SessionState || row instanceof ToolCallState;
    }

    private long dueMs(SpecificRecordBase row, long outageEndMs) {
        if (row instanceof SessionState session) {
            return changes.dueMs(session, outageEndMs);
        }
        if (row instanceof ToolCallState call) {
            return call.getDueAt();
        }
        return row instanceof Tombstone tombstone ? tombstone.getExpiresAt() : Timers.NEVER;
    }
}
