"""The types of the answers against /openapi.json of a sidecar that runs: the same fields on both sides, of the same types."""

import unittest
from typing import Any, Union, get_args, get_origin, get_type_hints

import httpx

from shardwise_client import EnteredKey, Explanation, Group, Holders, Owner, Ownership, Plan, Rebalance, Route, Wish
from shardwise_client._answers import Finished, GrantTableAnswer, LeaseAnswer, Names
from tests.common import ONE, TOKEN

PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
ANSWERS: dict[tuple[str, str], Any] = {
    ("get", "owner/{key}"): Owner,
    ("get", "explain/{key}"): Explanation,
    ("get", "ownership"): Ownership,
    ("get", "members"): Group,
    ("post", "plan"): Plan,
    ("post", "drain"): Wish,
    ("post", "undrain"): Wish,
    ("get", "holders"): Holders,
    ("get", "route"): Route,
    ("post", "leases"): LeaseAnswer,
    ("put", "leases/{lease}"): LeaseAnswer,
    ("get", "grants"): GrantTableAnswer,
    ("post", "grants/finished"): Finished,
    ("post", "enter"): list[EnteredKey],
    ("put", "names"): Names,
}


def of_type(hint: Any) -> Any:
    """A type of ours as texts, lists and objects."""
    if hint in PLAIN:
        return PLAIN[hint]
    if get_origin(hint) is Union:
        return {"one of": sorted(map(repr, map(of_type, get_args(hint))))}
    if get_origin(hint) is list:
        return [of_type(get_args(hint)[0])]
    if get_origin(hint) is dict:
        return {"any": of_type(get_args(hint)[1])}
    return {f".{name}": of_type(field) for name, field in sorted(get_type_hints(hint).items())}


def of_schema(schema: dict[str, Any], schemas: dict[str, Any]) -> Any:
    """The same of a schema."""
    if "$ref" in schema:
        return of_schema(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if "allOf" in schema:
        return {name: field for each in schema["allOf"] for name, field in of_schema(each, schemas).items()}
    if "oneOf" in schema:
        return {"one of": sorted(repr(of_schema(each, schemas)) for each in schema["oneOf"])}
    if isinstance(schema["type"], list):
        return {"one of": sorted(repr(of_schema({**schema, "type": each}, schemas)) for each in schema["type"])}
    if schema["type"] == "array":
        return [of_schema(schema["items"], schemas)]
    if schema["type"] == "object" and "properties" not in schema:
        return {"any": of_schema(schema["additionalProperties"], schemas)}
    if schema["type"] == "object":
        return {f".{name}": of_schema(field, schemas) for name, field in sorted(schema["properties"].items())}
    return schema["type"]


class Types(unittest.IsolatedAsyncioTestCase):
    async def test_they_are_those_of_the_document(self) -> None:
        self.maxDiff = None
        async with httpx.AsyncClient(trust_env=False, headers={"authorization": f"Bearer {TOKEN}"}) as http:
            document = (await http.get(f"{ONE}/openapi.json")).json()

        def told(method: str, route: str) -> Any:
            answers = document["paths"]["/v1/policies/{policy}/" + route][method]["responses"]
            answer = answers.get("200") or answers["201"]
            return of_schema(answer["content"]["application/json"]["schema"], document["components"]["schemas"])

        for (method, route), kind in ANSWERS.items():
            self.assertEqual(of_type(kind), told(method, route), f"{method} {route}")
        self.assertEqual({".rebalances": [of_type(Rebalance)]}, told("get", "rebalances"))
