"""Settings of a worker of the role quotas."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from sessionary.schemas.topics import TopicNames
from sessionary.stream_processors.settings import ProcessorSettings, quotas_group


class QuotaSettings(ProcessorSettings):
    """Settings of one worker: those of a processor, and the tenants' limits.

    Its topics are named as a processor's are: `events` is the log that it folds.
    """

    quotas_file: Path | None = Field(
        None,
        description="JSON file of the tenants' limits, such as "
        '{"default": {"concurrent_runs": 20, "over": "queue"}, "tenants": {"acme": {"tokens": 100000}}}; '
        "it is read again if it changes; without it no tenant has a limit",
    )

    @classmethod
    def _further_values(cls, environ: Mapping[str, str]) -> Mapping[str, object]:
        return {**super()._further_values(environ), "faust_agents": None}  # those are the processors'

    @property
    def topics(self) -> TopicNames:
        """The topic names with the prefix; the role's log and changelog are in their places."""
        names = self.pipeline_topics
        return names._replace(events=names.quotas, changelog=names.quotas_changelog)

    @property
    def pipeline_topics(self) -> TopicNames:
        """The topic names with the prefix, as all other roles have them."""
        return TopicNames.with_prefix(self.topic_prefix)

    @property
    def group_id(self) -> str:
        """The consumer group of the role's workers; their transactional ids begin with it."""
        return quotas_group(self.topic_prefix)
