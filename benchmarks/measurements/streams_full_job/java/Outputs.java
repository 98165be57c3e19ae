import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.avro.specific.SpecificRecordBase;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.processor.api.RecordMetadata;
import sessionary.common.AuditKind;
import sessionary.common.DataClass;
import sessionary.common.Envelope;
import sessionary.common.RejectionReason;
import sessionary.common.SeqRange;
import sessionary.common.SessionStateName;
import sessionary.records.AuditRecord;
import sessionary.records.CleanupRequest;
import sessionary.records.RejectedEvent;
import sessionary.records.SessionState;

/** What one record of the log leaves on other topics, numbered in order. */
final class Outputs {
    /** One output, and the topic that it goes to. */
    record Output(String topic, byte[] key, SpecificRecordBase record) {}

    static final String AUDIT = "audit";
    static final String CLEANUP = "cleanup";
    static final String REJECTED = "rejected";

    private static final Set<String> SECURITY_REASONS =
        Set.of("foreign_tenant", "key_mismatch", "not_owner", "stale_epoch", "not_member", "bad_signature");

    private final RecordCodec codec;
    private final List<Output> found = new ArrayList<>();
    private Record<byte[], byte[]> cause;
    private RecordMetadata place;
    private int n;
    private long nowMs;
    private long outageEndMs;

    Outputs(RecordCodec codec) {
        this.codec = codec;
    }

    /** Begins with a record of the log; `nowMs` is the partition's clock, `outageEndMs` the end of its last outage. */
    void begin(Record<byte[], byte[]> cause, RecordMetadata place, long nowMs, long outageEndMs) {
        found.clear();
        this.cause = cause;
        this.place = place;
        this.nowMs = nowMs;
        this.outageEndMs = outageEndMs;
        n = 0;
    }

    List<Output> found() {
        return found;
    }

    long offset() {
        return place.offset();
    }

    /** Returns whether the record was rejected before, and is sent again. */
    boolean isReplayed() {
        return cause.headers().lastHeader("replayed_from") != null;
    }

    long nowMs() {
        return nowMs;
    }

    void add(String topic, byte[] key, SpecificRecordBase record) {
        found.add(new Output(topic, key, record));
    }

    /** Adds an audit record of a session, with what all of them have, and returns it; `envelope`: null of a timer. */
    AuditRecord addAudit(byte[] key, SessionState row, Envelope envelope, AuditKind kind) {
        var record = newAudit(SessionKey.of(row), row.getAuditSeq(), row.getDataClasses(), envelope);
        record.setKind(kind);
        record.setFromState(row.getState());
        record.setToState(row.getState());
        record.setOwnerService(row.getOwnerService());
        record.setEpoch(row.getEpoch());
        record.setVersion(row.getVersion());
        add(AUDIT, key, record);
        return record;
    }

    /** Adds an audit record about a session that does not live; its classes of data are those of the event. */
    AuditRecord addAudit(byte[] key, SessionKey session, SessionStateName state, Envelope envelope, AuditKind kind) {
        List<DataClass> classes = envelope == null ? List.of() : SessionRows.sortClasses(envelope.getDataClasses());
        var record = newAudit(session, 0, classes, envelope);
        record.setKind(kind);
        record.setFromState(state);
        record.setToState(state);
        add(AUDIT, key, record);
        return record;
    }

    void addCleanup(byte[] key, SessionState row, String cleanupId, List<String> actions, String reason) {
        add(CLEANUP, key, new CleanupRequest(cleanupId, row.getTenantId(), row.getSessionId(), row.getOwnerService(),
            row.getEpoch(), row.getReasonCode(), reason, actions, nowMs * 1_000, row.getContextBytes()));
    }

    /** Completes the audit record of a change after which the row's hash is told. */
    void addHash(AuditRecord record, SessionState row) {
        record.setRowHash(Hashes.ofRow(codec.encode(row)));
    }

    /** Completes a session's first audit record. */
    void addOutage(AuditRecord record) {
        record.setOutageEndAt(outageEndMs == 0 ? null : outageEndMs * 1_000);
    }

    /** Completes the audit record of a rejection. */
    static void addRejection(AuditRecord record, String reason, String detail) {
        record.setReasonCode(reason);
        record.setReason(detail);
        record.setSecurity(SECURITY_REASONS.contains(reason));
    }

    /** Completes the audit record of a gap in a producer's numbers. */
    static void addGap(AuditRecord record, SeqRange gap) {
        record.setReasonCode("gap");
        record.setReason(record.getProducerId() + " jumped over " + gap.getFirst() + " to " + gap.getLast());
        record.setGapFirst(gap.getFirst());
        record.setGapLast(gap.getLast());
    }

    /** Adds a rejected record of the log as it came, and why; `envelope`: null if it cannot be taken as an event. */
    void addRejected(String reason, String detail, SessionKey session, Envelope envelope) {
        var rejected = new RejectedEvent();
        rejected.setReason(RejectionReason.valueOf(reason));
        rejected.setDetail(detail);
        rejected.setSecurity(SECURITY_REASONS.contains(reason));
        if (session != SessionKey.NONE) {
            rejected.setTenantId(session.tenantId());
            rejected.setSessionId(session.sessionId());
        }
        if (envelope != null) {
            rejected.setEventId(envelope.getEventId());
            rejected.setEventType(envelope.getEventType());
            rejected.setServiceId(envelope.getServiceId());
        }
        rejected.setSourceTopic(place.topic());
        rejected.setSourcePartition(place.partition());
        rejected.setSourceOffset(place.offset());
        rejected.setAppendedAt(cause.timestamp() * 1_000);
        rejected.setKey(cause.key() == null ? null : ByteBuffer.wrap(cause.key()));
        rejected.setValue(cause.value() == null ? null : ByteBuffer.wrap(cause.value()));
        Map<String, ByteBuffer> headers = new HashMap<>();
        cause.headers().forEach(header -> headers.put(header.key(), ByteBuffer.wrap(header.value())));
        rejected.setHeaders(headers);
        add(REJECTED, cause.key(), rejected);
    }

    private AuditRecord newAudit(SessionKey session, long auditSeq, List<DataClass> classes, Envelope envelope) {
        var record = new AuditRecord();
        String numbers = auditSeq + ":" + place.partition() + ":" + place.offset() + ":" + n;
        record.setAuditId(DerivedId.of(session.tenantId() + ":" + session.sessionId() + ":" + numbers));
        record.setTenantId(session.tenantId());
        record.setSessionId(session.sessionId());
        record.setAuditSeq(auditSeq);
        record.setReasonCode("");
        record.setReason("");
        record.setCleanupActions(List.of());
        record.setActionsDone(List.of());
        record.setActionsFailed(List.of());
        record.setSourcePartition(place.partition());
        record.setSourceOffset(place.offset());
        record.setSourceN(n++);
        long appendedUs = nowMs * 1_000;
        record.setAppendedAt(appendedUs);
        record.setComplianceTags(Retention.complianceTags(classes));
        record.setRetentionClass(Retention.retentionClass(classes));
        record.setRetainUntil(Retention.retainUntil(classes, appendedUs));
        record.setPersonalUntil(Retention.personalUntil(classes, appendedUs));
        record.setEventType("");
        record.setOccurredAt(appendedUs);
        if (envelope != null) {
            setEnvelope(record, envelope);
        }
        return record;
    }

    private static void setEnvelope(AuditRecord record, Envelope envelope) {
        record.setEventId(envelope.getEventId());
        record.setEventType(envelope.getEventType());
        record.setUserId(envelope.getUserId());
        record.setAgentId(envelope.getAgentId());
        record.setAgentRole(envelope.getAgentRole());
        record.setServiceId(envelope.getServiceId());
        record.setActor(envelope.getActor());
        record.setProducerId(envelope.getProducerId());
        record.setProducerSeq(envelope.getProducerSeq());
        record.setContextBytes(envelope.getContextBytes());
        record.setOccurredAt(envelope.getOccurredAt());
    }
}
