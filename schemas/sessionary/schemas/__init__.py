"""The contract: events, records, codec, ids, topics, settings and errors. Imports no sibling, opens no socket."""
