"""The tenants of the local stack and the demo. Pure."""

from typing import NamedTuple

from sessionary.schemas.types import DataClass


class Tenant(NamedTuple):
    """A tenant: its services, and the classes of data that its sessions handle."""

    services: tuple[str, ...]
    data_classes: tuple[DataClass, ...]


# A service belongs to exactly one tenant.
TENANTS: dict[str, Tenant] = {
    "acme": Tenant(("research", "support"), ("personal",)),
    "globex": Tenant(("billing",), ("financial", "personal")),
    "initech": Tenant(("coding",), ("none",)),
}
