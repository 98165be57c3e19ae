-- What calls cost, by tenant and service. An event counts once, however often it was delivered, and only if it was not
-- refused. Costs are millionths of a US dollar. `timeout_retry_share`: of the cost, what retries after a timeout took.
CREATE OR REPLACE VIEW {database}.v_usage AS
SELECT
    tenant_id, service_id, count() AS calls, sum(tokens_in) AS tokens_in, sum(tokens_out) AS tokens_out,
    sum(model_cost) AS model_cost_usd_micros, sum(tool_cost) AS tool_cost_usd_micros,
    countIf(is_retry) AS timeout_retries, sumIf(model_cost + tool_cost, is_retry) AS timeout_retry_cost_usd_micros,
    if(sum(model_cost + tool_cost) = 0, NULL, sumIf(model_cost + tool_cost, is_retry) / sum(model_cost + tool_cost))
        AS timeout_retry_share
FROM
(
    SELECT
        tenant_id, any(service_id) AS service_id,
        any(JSONExtractInt(payload_json, 'tokens_in')) AS tokens_in,
        any(JSONExtractInt(payload_json, 'tokens_out')) AS tokens_out,
        any(JSONExtractInt(payload_json, 'model_cost_usd_micros')) AS model_cost,
        any(JSONExtractInt(payload_json, 'tool_cost_usd_micros')) AS tool_cost,
        any(JSONExtractBool(payload_json, 'is_timeout_retry')) AS is_retry
    FROM {database}.history FINAL
    WHERE event_type = 'usage_recorded'
        AND (source_partition, source_offset) NOT IN
            (SELECT source_partition, source_offset FROM {database}.rejected FINAL)
    GROUP BY tenant_id, session_id, producer_id, producer_seq
)
GROUP BY tenant_id, service_id;
