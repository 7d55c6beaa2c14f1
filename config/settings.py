"""Every setting in one class, read from environment variables; FENCEBEAT_ is put before a name without an alias.

Addresses have the usual names (REDIS_URL, ...). Secrets come from the environment only and are never logged: use
`redacted` for anything that shows an address.
"""

import re
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from fencebeat.errors import ImpossibleConfiguration


class SourceConfig(BaseModel, extra="forbid"):
    """One source in FENCEBEAT_SOURCES."""

    tenant: str = Field("default", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    kind: Literal["folder"] = "folder"
    path: Path
    acl: tuple[str, ...] = ()


class Settings(BaseSettings):
    """The settings of every process of the application."""

    model_config = SettingsConfigDict(env_prefix="FENCEBEAT_", extra="ignore", frozen=True)

    redis_url: str = Field("redis://127.0.0.1:6379/0", validation_alias="REDIS_URL", repr=False)
    postgres_url: str = Field("postgresql://127.0.0.1:5432/fencebeat", validation_alias="POSTGRES_URL", repr=False)
    opensearch_url: str = Field("http://127.0.0.1:9200", validation_alias="OPENSEARCH_URL", repr=False)
    etcd_url: str = Field("http://127.0.0.1:2379", validation_alias="ETCD_URL", repr=False)
    embedder_url: str = Field(
        "", validation_alias="EMBEDDER_URL", repr=False, description="empty: the socket in the state folder"
    )
    state_dir: Path = Field(Path(".fencebeat"), description="history, logs, sockets, local servers' data")

    namespace: str = Field("fencebeat", pattern=r"^[A-Za-z0-9_.-]+$", description="prefix of every Redis key")
    lock: Literal["redis", "etcd"] = "redis"
    lease_seconds: float = Field(5.0, gt=0)
    sync_seconds: float = Field(60.0, gt=0, description="how often each source is listed")
    sweep_seconds: float = Field(5.0, gt=0, description="how often dirty documents without a message are looked for")

    sources: dict[str, SourceConfig] = Field(default_factory=dict)
    target: Literal["opensearch", "pgvector"] = "opensearch"
    index_prefix: str = Field("fencebeat", pattern=r"^[a-z][a-z0-9-]{0,40}$")

    model_path: Path | None = Field(None, description="folder of the model; None: the one packaged with [torch]")
    embed_batch_tokens: int = Field(4096, gt=0)
    chunk_characters: int = Field(400, gt=50, description="size aimed at; never above the model's tokens")
    max_document_bytes: int = Field(20_000_000, gt=0)
    max_document_characters: int = Field(5_000_000, gt=0)
    parse_seconds: float = Field(30.0, gt=0)

    claim_batch: int = Field(16, gt=0, description="documents per claim")
    claim_seconds: float = Field(60.0, gt=0, description="lease of a claim; renewed while the attempt goes on")
    max_delete_share: float = Field(0.2, ge=0, le=1)
    max_delete_documents: int = Field(1000, ge=0)
    purge_after_seconds: float = Field(86_400.0, gt=0)

    kill: Literal["", "emit", "start", "write"] = Field("", description="start with everything stopped at this level")
    control_timeout: float = Field(2.0, gt=0, description="of control calls, in seconds")
    search_timeout: float = Field(2.0, gt=0)
    target_timeout: float = Field(30.0, gt=0, description="of one bulk or scan request")
    embed_timeout: float = Field(120.0, gt=0, description="of one embedding request; a cold CPU is slow")

    otlp_endpoint: str = Field("", validation_alias="OTEL_EXPORTER_OTLP_ENDPOINT")
    trace_file: Path | None = Field(None, description="also write spans as JSON lines to this file")
    metrics_port: int = Field(0, ge=0, le=65535, description="of each worker; 0: none of its own")
    log_json: bool = False
    opensearch_password: SecretStr | None = Field(None, validation_alias="OPENSEARCH_PASSWORD")
    opensearch_user: str = Field("admin", validation_alias="OPENSEARCH_USER")
    opensearch_ca: Path | None = Field(None, validation_alias="OPENSEARCH_CA")

    @field_validator("sources")
    @classmethod
    def _names(cls, value: dict[str, SourceConfig]) -> dict[str, SourceConfig]:
        bad = [name for name in value if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name)]
        if bad:
            raise ValueError(f"source names may have letters, digits, '.', '_' and '-' only: {', '.join(bad)}")
        return value

    @property
    def embedder_address(self) -> str:
        """Where the embedder is: EMBEDDER_URL, else a Unix socket in the state folder."""
        return self.embedder_url or f"unix://{self.state_dir.resolve() / 'embedder.sock'}"


def redacted(url: str) -> str:
    """An address without its password, for messages and logs."""
    return re.sub(r"(://[^:/@]*):[^@/]*@", r"\1:***@", url)


@lru_cache(maxsize=1)
def settings() -> Settings:
    """The settings of this process, read once. Raises ImpossibleConfiguration, one sentence for each broken rule."""
    try:
        return Settings()  # type: ignore[call-arg]  # values come from the environment
    except ValidationError as error:
        rules = " ".join(f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}." for fault in error.errors())
        raise ImpossibleConfiguration(rules=rules) from None
