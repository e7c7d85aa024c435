"""Requests about users and access control lists."""

from __future__ import annotations

from batonmq.protocol.codes import RequestCode
from batonmq.protocol.registry import I32, I64, Header, request


@request(RequestCode.AUTH_CREATE_USER)
class CreateUser(Header):
    """Create a user; body `UserInfo`."""

    username: str | None = None


@request(RequestCode.AUTH_UPDATE_USER)
class UpdateUser(Header):
    """Change password, type or status of a user; body `UserInfo`."""

    username: str | None = None


@request(RequestCode.AUTH_DELETE_USER)
class DeleteUser(Header):
    """Delete a user and its access control list."""

    username: str | None = None


@request(RequestCode.AUTH_GET_USER)
class GetUser(Header):
    """One user; body of the answer `UserInfo`, none for an unknown user."""

    username: str | None = None


@request(RequestCode.AUTH_LIST_USER)
class ListUsers(Header):
    """The users whose name contains `filter`; body of the answer: a list of `UserInfo`."""

    filter: str | None = None


@request(RequestCode.AUTH_CREATE_ACL)
class CreateAcl(Header):
    """Add policies to a subject's access control list; body `AclInfo`."""

    subject: str | None = None


@request(RequestCode.AUTH_UPDATE_ACL)
class UpdateAcl(Header):
    """As `CreateAcl`."""

    subject: str | None = None


@request(RequestCode.AUTH_DELETE_ACL)
class DeleteAcl(Header):
    """Delete a subject's access control list, or its entry for one resource."""

    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None


@request(RequestCode.AUTH_GET_ACL)
class GetAcl(Header):
    """A subject's access control list; body of the answer `AclInfo`."""

    subject: str | None = None


@request(RequestCode.AUTH_LIST_ACL)
class ListAcls(Header):
    """Access control lists by parts of subject and resource; body of the answer: a list of `AclInfo`."""

    subject_filter: str | None = None
    resource_filter: str | None = None


@request(RequestCode.GET_ALL_ACCESS_CONTROL)
class GetAllAccessControl(Header):
    """A slave copies users and access control lists; body of the answer `AccessControlWrapper`."""


@request(RequestCode.PASS_ACCESS_CHANGE)
class PassAccessChange(Header):
    """A slave passes a change of users or access control lists on to its master; with the body of the
    request with code `auth_code`."""

    auth_code: I32
    broker_id: I64
    """Of the slave."""
    username: str | None = None
    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None
