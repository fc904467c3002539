"""Identity: tenants resolved from claims."""

from __future__ import annotations

import pytest

from codeq_cluster.auth.identity import AccessRefused, Claims, Role, claims_of, identify


def claims(**fields: object) -> Claims:
    """Return the claims of a token that has the given fields."""
    return claims_of({"sub": "s", "exp": 10, **fields}, keep_s=1.0)


@pytest.mark.parametrize(
    "name", ["tid", "tenantId", "tenant_id", "organizationId", "organization_id"]
)
def test_any_of_the_tenant_claims_names_the_tenant(name: str) -> None:
    """Issuers disagree about the claim's name."""
    identity = identify(claims(**{name: "acme"}), tenant_fallback="deny")

    assert "acme" == identity.tenant


def test_tenant_claims_that_agree_name_one_tenant() -> None:
    """Naming the tenant twice is no contradiction."""
    identity = identify(claims(tid="acme", tenantId="acme"), tenant_fallback="deny")

    assert "acme" == identity.tenant


@pytest.mark.parametrize(
    "fields",
    [
        {"tid": "acme", "tenant_id": "other"},
        {"tid": "acme", "organization_id": 7},
        {"tid": ""},
        {"tid": "A"},
        {"tid": "a"},
        {"tid": "acme\n"},
        {"tid": "a/b"},
        {"tid": "x" * 64},
        {"tid": ["acme"]},
        {},
    ],
)
def test_tenant_claims_that_do_not_name_one_tenant_are_refused(fields: dict[str, object]) -> None:
    """Disagreeing, malformed or missing claims end in 403."""
    with pytest.raises(AccessRefused) as refused:
        identify(claims(**fields), tenant_fallback="deny")

    assert (403, "invalid tenant claims") == (refused.value.status, refused.value.text)


def test_a_malformed_tenant_claim_is_never_rescued_by_the_fallback() -> None:
    """The fallback is for tokens that name no tenant."""
    with pytest.raises(AccessRefused):
        identify(claims(tid="A"), tenant_fallback="default")


def test_a_token_without_tenant_falls_back_as_configured() -> None:
    """The fallback is the subject, or the default tenant with the empty name."""
    by_subject = identify(claims(sub="worker-1"), tenant_fallback="subject")
    by_default = identify(claims(), tenant_fallback="default")

    assert ("worker-1", "") == (by_subject.tenant, by_default.tenant)


def test_scopes_come_as_a_string_or_as_an_array() -> None:
    """Both forms are in use."""
    as_string = claims(scope="codeq:claim  codeq:result").scopes
    as_array = claims(scope=["codeq:claim", "codeq:result", 3]).scopes

    assert as_string == as_array == {"codeq:claim", "codeq:result"}


@pytest.mark.parametrize(
    "fields",
    [{"scope": "codeq:admin"}, {"role": "ADMIN"}, {"role": "admin"}, {"role": "Admin"}],
)
def test_an_admin_is_named_by_scope_or_role(fields: dict[str, object]) -> None:
    """The role claim matches in any case, the scope only as written; neither names an operator."""
    assert {Role.ADMIN} == identify(claims(**fields), tenant_fallback="default").roles


def test_an_operator_is_named_by_its_scope() -> None:
    """An operator is not an admin of its tenant, unless the token has that scope too."""
    operator = identify(claims(scope="codeq:operator"), tenant_fallback="default")
    both = identify(claims(scope="codeq:operator", role="ADMIN"), tenant_fallback="default")

    assert {Role.OPERATOR} == operator.roles
    assert {Role.ADMIN, Role.OPERATOR} == both.roles


@pytest.mark.parametrize(
    "fields",
    [
        {"scope": "admin"},
        {"scope": "CODEQ:ADMIN"},
        {"scope": "codeq:admins"},
        {"role": ["ADMIN"]},
        {"role": "ADMINISTRATOR"},
        {"role": "codeq:admin"},
        {"scope": "operator"},
        {"scope": "CODEQ:OPERATOR"},
        {"role": "OPERATOR"},
        {"role": "codeq:operator"},
    ],
)
def test_nothing_else_names_a_role(fields: dict[str, object]) -> None:
    """Similar words give no rights."""
    assert not identify(claims(**fields), tenant_fallback="default").roles
