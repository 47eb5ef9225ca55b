"""A client of the API with a token."""

from __future__ import annotations

import json
from typing import Any

from django.contrib.auth.models import User
from django.test import Client

from delayboard.sign_in.tokens import make_token
from topology.models import Role


class ApiClient:
    def __init__(self, secret: str) -> None:
        self.secret = secret
        self._client = Client(headers={"Authorization": f"Bearer {secret}"})

    def get(self, path: str, values: Any = None, **more: Any) -> Any:
        return self._client.get(f"/api/v1/{path}", values, **more)

    def post(self, path: str, values: Any = None, key: str = "", **more: Any) -> Any:
        headers = {"Idempotency-Key": key} if key else {}
        body = json.dumps({} if values is None else values)
        return self._client.post(
            f"/api/v1/{path}", body, content_type="application/json", headers=headers, **more
        )

    def request(self, method: str, path: str) -> Any:
        return self._client.generic(method, f"/api/v1/{path}")


def api_of(user: User, role: Role, **more: Any) -> ApiClient:
    """With a new token of this account."""
    values = {"name": "test", "brokers": None, "days": 30} | more
    return ApiClient(make_token(user, role=role, **values)[1])
