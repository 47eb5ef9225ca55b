"""What can go wrong with a broker, each as a sentence that an operator can act on.

BrokerError
├── Unreachable     nobody answered, or the answer was none of RabbitMQ's; try again later
├── Refused         credentials, permissions or the virtual host; trying again does not help
├── NotFound        an exchange, a queue or a page of the API is not there
├── Conflict        it exists with other arguments, or is in use
├── Returned        a mandatory message was routed to no queue
├── Nacked          a queue refused the message
├── OutcomeUnknown  the connection broke before the broker confirmed: published, or not
├── Unsupported     this broker cannot do that
├── AddressError    the address or its certificate cannot be used (topology.broker.address)
└── DecryptionError its password cannot be read (topology.models.secrets)
"""

from __future__ import annotations


class BrokerError(Exception):
    """A sentence for a person; `retry_helps` says whether the same call may work later."""

    retry_helps = False


class Unreachable(BrokerError):
    retry_helps = True


class Refused(BrokerError):
    pass


class NotFound(BrokerError):
    pass


class Conflict(BrokerError):
    pass


class Returned(BrokerError):
    pass


class Nacked(BrokerError):
    retry_helps = True


class OutcomeUnknown(BrokerError):
    retry_helps = True


class Unsupported(BrokerError):
    pass
