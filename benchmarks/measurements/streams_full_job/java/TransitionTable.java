import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.io.IOException;
import java.util.ArrayList;
import java.util.EnumMap;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import sessionary.common.Phase;
import sessionary.common.SessionStateName;
import sessionary.records.SessionState;

/** The table of transitions, and what is accepted without one; read from a file that the processor's table makes. */
final class TransitionTable {
    /** What lets a transition pass. */
    enum Guard { UNGUARDED, START, FAIL_START, PAUSE, RESUME, RESUME_IN_GRACE, FAIL, RECOVER, TERMINATE }

    /** What a transition does to the session beside its state and phase. */
    enum Effect { KEEP_SESSION, BEGIN_DURATION, STOP_DURATION, RESUME_HELD, REVIVE, COUNT_RECOVERY }

    record CleanupPlan(List<String> actions, Map<String, List<String>> byReason, boolean once) {
        List<String> actionsFor(String reasonCode, boolean released) {
            return once && released ? List.of() : byReason.getOrDefault(reasonCode, actions);
        }
    }

    record Transition(
        String id,
        SessionStateName source,
        String eventType,
        SessionStateName target,
        Phase phase,
        boolean byClient,
        List<String> reasons,
        Guard guard,
        Effect effect,
        CleanupPlan cleanup
    ) {}

    /** A clock, the transition that it makes, and what the audit trail says then. */
    record Clocked(
        SessionClock clock, Transition transition, String reasonCode, String reason, boolean ofActivity
    ) {
        /** Returns when it is due; a clock of activity begins again when the log's last outage ends (0: none). */
        long dueMs(SessionState row, long outageEndMs) {
            long dueMs = clock.dueMs(row);
            boolean isHeld = ofActivity && outageEndMs > 0 && dueMs != Timers.NEVER;
            return isHeld ? Math.max(dueMs, outageEndMs + clock.limitMs(row)) : dueMs;
        }
    }

    private final Transition creation;
    private final Map<SessionStateName, Map<String, Transition>> byEvent = new EnumMap<>(SessionStateName.class);
    private final Map<SessionStateName, List<Clocked>> clocked = new EnumMap<>(SessionStateName.class);
    private final Map<SessionStateName, Set<String>> accepted = new EnumMap<>(SessionStateName.class);
    private final Map<SessionStateName, Map<Phase, Set<Phase>>> phases = new EnumMap<>(SessionStateName.class);
    private final JsonNode bounds;
    private final Set<String> ownerOnly;
    private final Set<String> contentChanges;
    private final Set<String> membership;
    private final Set<String> leftOut;
    private final Set<String> processorOnly;
    private final Map<String, Set<String>> clockReasons = new HashMap<>();
    private final int recoveryAttemptsMax;

    TransitionTable(File file) throws IOException {
        JsonNode table = new ObjectMapper().readTree(file);
        Transition first = null;
        for (JsonNode row : table.get("transitions")) {
            Transition transition = readTransition(row);
            if (transition.source == null) {
                first = transition;
                continue;
            }
            if (transition.byClient) {
                var ofState = byEvent.computeIfAbsent(transition.source, state -> new HashMap<>());
                ofState.put(transition.eventType, transition);
            }
            for (JsonNode clock : row.get("clocks")) {
                var name = SessionClock.valueOf(clock.get("name").asText().toUpperCase(Locale.ROOT));
                var text = clock.get("reason").asText();
                boolean ofActivity = clock.get("of_activity").asBoolean();
                clocked.computeIfAbsent(transition.source, state -> new ArrayList<>())
                    .add(new Clocked(name, transition, clock.get("reason_code").asText(), text, ofActivity));
            }
        }
        creation = first;
        table.get("accepted").properties()
            .forEach(entry -> accepted.put(SessionStateName.valueOf(entry.getKey()), readTexts(entry.getValue())));
        table.get("phases").properties().forEach(entry -> readPhases(entry.getKey(), entry.getValue()));
        table.get("clock_reasons").properties()
            .forEach(entry -> clockReasons.put(entry.getKey(), readTexts(entry.getValue())));
        bounds = table.get("bounds");
        ownerOnly = readTexts(table.get("owner_only"));
        contentChanges = readTexts(table.get("content_changes"));
        membership = readTexts(table.get("membership"));
        leftOut = readTexts(table.get("left_out"));
        processorOnly = readTexts(table.get("processor_only"));
        recoveryAttemptsMax = table.get("recovery_attempts_max").asInt();
    }

    Transition creation() {
        return creation;
    }

    Transition find(SessionStateName state, String eventType) {
        return byEvent.getOrDefault(state, Map.of()).get(eventType);
    }

    boolean accepts(SessionStateName state, String eventType) {
        return accepted.getOrDefault(state, Set.of()).contains(eventType);
    }

    boolean isPossibleIn(SessionStateName state, String eventType) {
        return find(state, eventType) != null || accepts(state, eventType);
    }

    boolean follows(SessionStateName state, Phase before, Phase after) {
        return phases.getOrDefault(state, Map.of()).getOrDefault(before, Set.of()).contains(after);
    }

    List<Clocked> clocksOf(SessionStateName state) {
        return clocked.getOrDefault(state, List.of());
    }

    boolean isOwnerOnly(String eventType) {
        return ownerOnly.contains(eventType);
    }

    boolean changesContent(String eventType) {
        return contentChanges.contains(eventType);
    }

    boolean changesMembers(String eventType) {
        return membership.contains(eventType);
    }

    /** Returns whether this program does not judge events of a type, which no event of the benchmark has. */
    boolean isLeftOut(String eventType) {
        return leftOut.contains(eventType);
    }

    /** Returns the bounds of an event's values, as the file has them. */
    JsonNode bounds() {
        return bounds;
    }

    boolean isProcessorOnly(String eventType, String reason) {
        return processorOnly.contains(eventType) || clockReasons.getOrDefault(eventType, Set.of()).contains(reason);
    }

    int recoveryAttemptsMax() {
        return recoveryAttemptsMax;
    }

    private static Transition readTransition(JsonNode row) {
        var plan = row.get("cleanup");
        Map<String, List<String>> byReason = new HashMap<>();
        plan.get("by_reason").properties().forEach(entry -> byReason.put(entry.getKey(), listTexts(entry.getValue())));
        return new Transition(
            row.get("id").asText(),
            row.get("source").isNull() ? null : SessionStateName.valueOf(row.get("source").asText()),
            row.get("event_type").asText(),
            SessionStateName.valueOf(row.get("target").asText()),
            row.get("phase").isNull() ? null : Phase.valueOf(row.get("phase").asText()),
            !row.get("by").asText().equals("processor"),
            listTexts(row.get("reasons")),
            Guard.valueOf(row.get("guard").asText().toUpperCase(Locale.ROOT)),
            Effect.valueOf(row.get("effect").asText().toUpperCase(Locale.ROOT)),
            new CleanupPlan(listTexts(plan.get("actions")), byReason, plan.get("once").asBoolean())
        );
    }

    private void readPhases(String state, JsonNode pairs) {
        Map<Phase, Set<Phase>> found = new EnumMap<>(Phase.class);
        for (JsonNode pair : pairs) {
            if (!pair.get(0).isNull()) { // the end of a turn in a pause, which is not judged here
                found.computeIfAbsent(Phase.valueOf(pair.get(0).asText()), phase -> new HashSet<>())
                    .add(Phase.valueOf(pair.get(1).asText()));
            }
        }
        phases.put(SessionStateName.valueOf(state), found);
    }

    private static List<String> listTexts(JsonNode texts) {
        List<String> found = new ArrayList<>();
        texts.forEach(text -> found.add(text.asText()));
        return List.copyOf(found);
    }

    private static Set<String> readTexts(JsonNode texts) {
        return Set.copyOf(listTexts(texts));
    }
}
