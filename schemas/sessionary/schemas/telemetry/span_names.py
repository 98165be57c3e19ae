"""The names of all spans and their attributes, as OpenTelemetry's conventions have them.

Those of messaging and generative AI are still in development there: if they change, they change
here. A span's name is its operation and its topic: `send sessionary.events`.
"""

from typing import Final

SCOPE: Final = "sessionary"  # of all tracers

SEND: Final = "send"  # a client hands an event to Kafka
PROCESS: Final = "process"  # a processor has judged an event, and its transaction is committed
STORE: Final = "store"  # a sink writes a block to ClickHouse

MESSAGING_SYSTEM: Final = "messaging.system"
MESSAGING_OPERATION_NAME: Final = "messaging.operation.name"
MESSAGING_OPERATION_TYPE: Final = "messaging.operation.type"  # send or process
MESSAGING_DESTINATION_NAME: Final = "messaging.destination.name"
MESSAGING_DESTINATION_PARTITION_ID: Final = "messaging.destination.partition.id"  # text
MESSAGING_CONSUMER_GROUP_NAME: Final = "messaging.consumer.group.name"
MESSAGING_KAFKA_OFFSET: Final = "messaging.kafka.offset"
MESSAGING_MESSAGE_ID: Final = "messaging.message.id"  # the event's id
MESSAGING_MESSAGE_BODY_SIZE: Final = "messaging.message.body.size"
MESSAGING_BATCH_MESSAGE_COUNT: Final = "messaging.batch.message_count"
CONVERSATION_ID: Final = "gen_ai.conversation.id"  # the session's id
DB_SYSTEM_NAME: Final = "db.system.name"
DB_COLLECTION_NAME: Final = "db.collection.name"  # the table
ERROR_TYPE: Final = "error.type"

TENANT_ID: Final = "sessionary.tenant.id"
EVENT_TYPE: Final = "sessionary.event.type"
OUTCOME: Final = "sessionary.outcome"  # applied, duplicate or refused
REFUSAL_REASON: Final = "sessionary.refusal.reason"
