"""A real broker with a listener per way to prove who one is, and an authorizer.

Without credentials (the first listener) a client is a superuser, for the set-up of a test.
"""

from pathlib import Path

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from sessionary.infra.local.kafka.cluster import broker_answers
from sessionary.infra.local.kafka.node import NodeIdentity, QuorumMember, prepare_start, random_id
from sessionary.infra.local.ports import LOOPBACK, free_ports
from tests.support.certificates import CertificateAuthority
from tests.support.processes import Processes
from tests.support.waiting import wait_until

PASSWORD = "s3cret"
_JAAS = "org.apache.kafka.common.security"
_PRINCIPALS = ("agent", "replayer", "processor", "sink", "observer", "administrator")
_TIMEOUT_S = 120.0


class SecuredBroker:
    """Runs from construction to the end of `processes`.

    `plain_servers`: without credentials. `mtls_servers`: TLS that demands a certificate.
    `password_servers`: SASL_SSL with PLAIN and `PASSWORD`. `oauth_servers`:
    SASL_PLAINTEXT with OAUTHBEARER; any unsigned token is believed.
    """

    def __init__(self, folder: Path, authority: CertificateAuthority, processes: Processes) -> None:
        controller, *ports = free_ports(5)
        listed = [f"{LOOPBACK}:{port}" for port in ports]
        self.plain_servers, self.mtls_servers, self.password_servers, self.oauth_servers = listed
        server = authority.issue("broker")
        names = ("PLAINTEXT", "MTLS", "PASSWORD", "OAUTH")
        listeners = ",".join(f"{name}://{place}" for name, place in zip(names, listed, strict=True))
        stores = (
            f"ssl.keystore.type=PEM\nssl.keystore.location={server.both}\n"
            f"ssl.truststore.type=PEM\nssl.truststore.location={authority.file}\n"
        )
        properties = (
            f"listeners={listeners},CONTROLLER://{LOOPBACK}:{controller}\n"
            f"advertised.listeners={listeners}\n"
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,MTLS:SSL,PASSWORD:SASL_SSL,"
            "OAUTH:SASL_PLAINTEXT\n"
            f"{stores}"
            "listener.name.mtls.ssl.client.auth=required\n"
            "listener.name.password.sasl.enabled.mechanisms=PLAIN\n"
            f"listener.name.password.plain.sasl.jaas.config={_JAAS}.plain.PlainLoginModule required "
            + " ".join(f'user_{name}="{PASSWORD}"' for name in _PRINCIPALS)
            + ";\n"
            "listener.name.oauth.sasl.enabled.mechanisms=OAUTHBEARER\n"
            f"listener.name.oauth.oauthbearer.sasl.jaas.config={_JAAS}.oauthbearer.OAuthBearerLoginModule required "
            'unsecuredLoginStringClaim_sub="broker";\n'
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
            "super.users=User:ANONYMOUS\n"
            r"ssl.principal.mapping.rules=RULE:^CN=([^,]+).*$/$1/,DEFAULT" + "\n"
        )
        folder.mkdir(parents=True, exist_ok=True)
        identity = NodeIdentity(random_id(), ports[0], controller)
        member = QuorumMember(1, f"{LOOPBACK}:{controller}", ("--standalone",), 1, 1, properties)
        argv = prepare_start(folder, identity, lambda _line: None, member=member)
        processes.run(argv, name="secured-broker")
        wait_until(lambda: broker_answers(self.plain_servers), 180, "the secured broker to answer", pause_s=0.2)

    def allow(self, principal: str, resource: str, name: str, operation: str, *, prefixed: bool = False) -> None:
        """Add what one `kafka-acls --add` adds; `resource` and `operation` are its names."""
        pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
        binding = AclBinding(
            ResourceType[resource.upper()],
            name,
            pattern,
            f"User:{principal}",
            "*",
            AclOperation[operation.upper()],
            AclPermissionType.ALLOW,
        )
        admin = AdminClient({"bootstrap.servers": self.plain_servers, "log_level": 0})
        for made in admin.create_acls([binding], request_timeout=_TIMEOUT_S).values():
            made.result(_TIMEOUT_S)
