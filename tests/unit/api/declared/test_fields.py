"""Fields: what is declared at a field is checked by the decoder and shown by the document."""

from __future__ import annotations

import re
from operator import attrgetter
from pathlib import Path

import pytest

from codeq_cluster.api.declared.bodies import Body, Schema, field
from codeq_cluster.api.http.errors import ApiError, bad_request
from codeq_cluster.settings import LimitSettings, NodeSettings

BAD_NAME = bad_request("a name is wanted", "invalid-name")
SETTINGS = NodeSettings(
    node_id="n1",
    cluster_id="c",
    cluster_secret="a secret that is long enough for a cluster",
    peers=(),
    data_dir=Path("data"),
    limits=LimitSettings(batch_max=7),
)


class ThingBody(Body):
    """A thing."""

    count: int | None = field("At most {node.limits.batch_max}.", ge=1, le=9)
    tags: list[str] | None = field("Tags.", max_length=2)
    name: str = field(
        "Its name.",
        default="",
        required=True,
        pattern=re.compile("[a-z]+"),
        refused=(BAD_NAME,),
    )
    batch: int | None = field("A batch.", maximum=attrgetter("limits.batch_max"))


def unknown(name: str, known: tuple[str, ...]) -> ApiError:
    """Return a refusal that names the field and those there are."""
    return bad_request(f"{name}: use {', '.join(known)}", "unknown-name")


THING = Schema(ThingBody, refusal="no thing")
STRICT = Schema(ThingBody, unknown=unknown)


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ('{"name":"a","count":0}', "invalid 'count' (must be >= 1)"),
        ('{"name":"a","count":10}', "invalid 'count' (must be <= 9)"),
        ('{"name":"a","COUNT":10,"more":1}', "invalid 'count' (must be <= 9)"),
        ('{"name":"a","count":99999999999999999999}', "no thing"),
        ('{"name":"a","tags":["b","c","d"]}', "invalid 'tags' (at most 2)"),
        ('{"name":"A"}', "a name is wanted"),
        ('{"name":"a\\n"}', "a name is wanted"),
        ("{}", "a name is wanted"),
        ('{"name":null}', "a name is wanted"),
        ('{"count":0,"name":1}', "no thing"),
    ],
)
def test_a_body_out_of_bounds_is_refused_in_the_fields_words(text: str, refusal: str) -> None:
    """A wrong type comes first, then the fields in their order."""
    with pytest.raises(ApiError) as refused:
        THING.decode(text)

    assert refusal == refused.value.text


def test_a_body_at_its_bounds_is_taken() -> None:
    """Bounds are inclusive, and what the handler checks is left to it."""
    body = THING.decode('{"name":"a","count":9,"tags":["b","c"],"batch":8}')

    assert (9, ["b", "c"], "a", 8) == (body.count, body.tags, body.name, body.batch)


def test_an_unknown_field_is_refused_only_where_the_schema_says_so() -> None:
    """The first unknown field is named as it was sent."""
    text = '{"name":"a","Owner":1,"x":2}'
    with pytest.raises(ApiError) as refused:
        STRICT.decode(text)

    assert "a" == THING.decode(text).name
    assert "Owner: use count, tags, name, batch" == refused.value.text


def test_what_is_checked_is_described() -> None:
    """Limits of the settings are filled in."""
    count, tags, name, batch = (each.facts(SETTINGS) for each in THING.fields)

    assert {"description": "At most 7.", "minimum": 1, "maximum": 9} == count
    assert {"description": "Tags.", "maxItems": 2} == tags
    assert {"description": "Its name.", "pattern": "^[a-z]+$"} == name
    assert {"description": "A batch.", "maximum": 7} == batch
    assert ["name"] == [each.name for each in THING.fields if each.required]


def test_the_refusals_of_a_body_follow_from_its_bounds_or_are_the_fields_own() -> None:
    """The document lists them at every route that takes the body."""
    texts = [each.text for each in THING.refusals(SETTINGS)]

    assert [
        "invalid 'count' (must be >= 1)",
        "invalid 'count' (must be <= 9)",
        "invalid 'tags' (at most 2)",
        "a name is wanted",
        "invalid 'batch' (must be <= 7)",
    ] == texts
