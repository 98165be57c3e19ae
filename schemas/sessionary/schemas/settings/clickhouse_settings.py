"""How sinks, commands and the lag exporter reach ClickHouse."""

from pydantic import Field, SecretStr

from sessionary.schemas.settings.env_settings import EnvSettings


class ClickHouseSettings(EnvSettings):
    """How to reach ClickHouse."""

    clickhouse_url: str = Field("http://127.0.0.1:8123", description="ClickHouse's HTTP interface")
    clickhouse_user: str = Field("default", description="ClickHouse user")
    clickhouse_password: SecretStr = Field(SecretStr(""), description="ClickHouse password")
    clickhouse_ca_location: str | None = Field(
        None, description="file of the certificate authority of an https ClickHouse; by default the system's"
    )
    clickhouse_database: str = Field(
        "sessionary", description="database of this pipeline; an extra pipeline has its own", pattern=r"^[A-Za-z_]\w*$"
    )
