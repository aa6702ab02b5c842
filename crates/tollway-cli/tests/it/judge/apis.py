"""What six public APIs limit, and how they tell of it or keep silent.

Each class says for a call which limits it counts against. `decide` asks all of them first and
takes from all or none, as the APIs do: a refused call takes nothing. Numbers come from the test
that starts the upstream, so that a minute of the real API can be a few seconds here.
"""

import hashlib
import json
import math
import time
from datetime import datetime, timezone
from urllib.parse import parse_qs

from limits import AnySpan, FixedWindow, Permits, TokenBucket


class Call:
    """One request, as far as limits care."""

    def __init__(self, method, target, headers, body):
        path, _, query = target.partition("?")
        self.method, self.path, self.query = method, path, query
        self.headers, self.raw = headers, body
        self.parts = [part for part in path.split("/") if part]
        while self.parts and (self.parts[0] == "api" or is_version(self.parts[0])):
            self.parts.pop(0)
        self.who = headers.get("authorization") or headers.get("x-api-key") or ""
        self.fields = read_fields(headers.get("content-type", ""), body, query)


class Decision:
    """What the API does with a call: `refused` names the limit that had no room."""

    def __init__(self, refused=None, status=200, headers=None, body=None):
        self.refused, self.status = refused, status
        self.headers, self.body = headers or {}, body
        self.permits = []


class Api:
    """Limits by name, made when first asked for: of a credential, a route, a resource."""

    def __init__(self, options):
        self.options, self.made, self.hidden = options, {}, set()

    def limit(self, kind, name, *key, **more):
        """The limit `name` of the options, one for each key."""
        if name not in self.options:
            return None
        if (name, key) not in self.made:
            self.made[name, key] = kind(*self.options[name], **more)
        return self.made[name, key]

    def decide(self, call, now):
        counted = [entry for entry in self.limits(call) if entry[1] is not None]
        for name, limit, cost in counted:
            if not limit.has_room(now, cost):
                return self.refuse(call, name, limit, cost, now)
        for _, limit, cost in counted:
            limit.take(now, cost)
        decision = Decision(headers=self.told(call, now))
        decision.permits = [limit for _, limit, _ in counted if isinstance(limit, Permits)]
        return decision


class OpenAi(Api):
    """Token buckets for requests and tokens of each model; a reset is when they are full again."""

    def limits(self, call):
        model = call.fields.get("model", "")
        return [
            ("requests", self.limit(TokenBucket, "requests", call.who, model), 1),
            ("tokens", self.limit(TokenBucket, "tokens", call.who, model), tokens_of(call)),
        ]

    def told(self, call, now):
        fields = {}
        for name, limit, _ in self.limits(call):
            if limit is not None:
                fields[f"x-ratelimit-limit-{name}"] = str(limit.size)
                fields[f"x-ratelimit-remaining-{name}"] = str(limit.left(now))
                fields[f"x-ratelimit-reset-{name}"] = as_go_prints(limit.full_in(now))
        return fields

    def refuse(self, call, name, limit, cost, now):
        wait = limit.next_in(now, cost)
        fields = self.told(call, now)
        fields["retry-after-ms"] = str(math.ceil(wait * 1000))
        fields["retry-after"] = str(math.ceil(wait))
        error = {"message": f"Rate limit reached on {name}.", "type": name, "param": None}
        error["code"] = "rate_limit_exceeded"
        return Decision(name, 429, fields, {"error": error})


class Anthropic(Api):
    """Token buckets of requests, input and output tokens; resets as timestamps."""

    def limits(self, call):
        model = call.fields.get("model", "")
        spoken = len(call.raw) // 4
        return [
            ("requests", self.limit(TokenBucket, "requests", call.who, model), 1),
            ("input-tokens", self.limit(TokenBucket, "input-tokens", call.who, model), spoken),
            (
                "output-tokens",
                self.limit(TokenBucket, "output-tokens", call.who, model),
                call.fields.get("max_tokens", 0),
            ),
        ]

    def told(self, call, now):
        fields = {}
        for name, limit, _ in self.limits(call):
            if limit is not None:
                full = datetime.fromtimestamp(wall(now + limit.full_in(now)), timezone.utc)
                at = full.isoformat(timespec="milliseconds").replace("+00:00", "Z")
                fields[f"anthropic-ratelimit-{name}-limit"] = str(limit.size)
                fields[f"anthropic-ratelimit-{name}-remaining"] = str(limit.left(now))
                fields[f"anthropic-ratelimit-{name}-reset"] = at
        return fields

    def refuse(self, call, name, limit, cost, now):
        fields = self.told(call, now)
        fields["retry-after"] = str(math.ceil(limit.next_in(now, cost)))
        error = {"type": "rate_limit_error", "message": f"This would exceed your {name} limit."}
        return Decision(name, 429, fields, {"type": "error", "error": error})


class Discord(Api):
    """Buckets by route and top-level resource, a hidden limit on renames, one over everything."""

    OLD = 14 * 24 * 3600
    YOUNG = 10

    def bucket(self, call):
        """The name in the options and the kind of the bucket that a call belongs to."""
        shape = [part if not part.isdigit() else "#" for part in call.parts]
        match call.method, shape:
            case "POST", ["channels", "#", "messages"]:
                return "send", FixedWindow
            case "GET", ["channels", "#", "messages", *_]:
                return "read", TokenBucket
            case "DELETE", ["channels", "#", "messages", "#"]:
                return self.by_age(int(call.parts[3])), FixedWindow
            case "PATCH", ["channels", "#"]:
                return "channel", TokenBucket
        return None, None

    def by_age(self, message):
        age = time.time() - ((message >> 22) / 1000 + 1420070400)
        return "delete-old" if age > self.OLD else "delete-young" if age < self.YOUNG else "delete"

    def limits(self, call):
        name, kind = self.bucket(call)
        counted = [("global", self.limit(AnySpan, "global", call.who), 1)]
        if name == "channel" and "name" in call.fields:
            counted.append(("rename", self.limit(FixedWindow, "rename", *call.parts[:2]), 1))
        if name is not None:
            counted.append((name, self.limit(kind, name, *call.parts[:2]), 1))
        return counted

    def told(self, call, now):
        name, kind = self.bucket(call)
        limit = name and self.limit(kind, name, *call.parts[:2])
        if not limit:
            return {"via": "1.1 google"}
        generation = int(now / self.options["alternate"]) % 2 if "alternate" in self.options else 0
        full = limit.full_in(now)
        return {
            "via": "1.1 google",
            "x-ratelimit-limit": str(limit.size),
            "x-ratelimit-remaining": str(limit.left(now)),
            "x-ratelimit-reset": f"{wall(now + full):.3f}",
            "x-ratelimit-reset-after": up_to_millis(full),
            "x-ratelimit-bucket": hashlib.md5(f"{name} {generation}".encode()).hexdigest(),
        }

    def refuse(self, call, name, limit, cost, now):
        wait, whole = limit.next_in(now, cost), name == "global"
        fields = {"via": "1.1 google", "x-ratelimit-global": "true"} if whole else None
        fields = fields or self.told(call, now)
        fields["x-ratelimit-scope"] = "global" if whole else "user"
        fields["retry-after"] = str(math.ceil(wait))
        said = {"message": "You are being rate limited.", "global": whole}
        said["retry_after"] = float(up_to_millis(wait))
        return Decision(name, 429, fields, said)


class GitHub(Api):
    """A counted window by class, and a secondary limit on writing that stops the whole credential."""

    def __init__(self, options):
        super().__init__(options)
        self.stopped = {}

    def primary(self, call):
        name = "search" if call.parts[:1] == ["search"] else "core"
        return name, self.limit(FixedWindow, name, call.who, whole_seconds=True)

    def limits(self, call):
        name, limit = self.primary(call)
        counted = [(name, limit, 1)]
        if call.method != "GET":
            counted.append(("secondary", self.limit(FixedWindow, "secondary", call.who), 1))
        return counted

    def decide(self, call, now):
        if now < self.stopped.get(call.who, 0.0):
            return self.stop(call, now)
        return super().decide(call, now)

    def told(self, call, now):
        name, limit = self.primary(call)
        if limit is None:
            return {}
        return {
            "x-ratelimit-limit": str(limit.size),
            "x-ratelimit-remaining": str(limit.left(now)),
            "x-ratelimit-used": str(limit.size - limit.left(now)),
            "x-ratelimit-reset": str(round(wall(now + limit.full_in(now)))),
            "x-ratelimit-resource": name,
        }

    def refuse(self, call, name, limit, cost, now):
        if name == "secondary":
            # Told in whole seconds, and held to what was told.
            self.stopped[call.who] = now + math.ceil(limit.next_in(now, cost))
            return self.stop(call, now)
        said = {"message": "API rate limit exceeded for user ID 1.", "documentation_url": DOCS}
        return Decision(name, 403, self.told(call, now), said)

    def stop(self, call, now):
        fields = self.told(call, now)
        fields["retry-after"] = str(math.ceil(self.stopped[call.who] - now))
        message = "You have exceeded a secondary rate limit. Please wait a few minutes."
        return Decision("secondary", 403, fields, {"message": message, "documentation_url": DOCS})


class Slack(Api):
    """Limits of methods, some of them by channel, that nothing tells of before the refusal."""

    def limits(self, call):
        method = call.parts[-1] if call.parts else ""
        key = [call.who]
        if method == "chat.postMessage":
            key.append(call.fields.get("channel", ""))
        return [(method, self.limit(FixedWindow, method, *key), 1)]

    def told(self, _call, _now):
        return {}

    def refuse(self, _call, name, limit, cost, now):
        fields = {"retry-after": str(math.ceil(limit.next_in(now, cost)))}
        return Decision(name, 429, fields, {"ok": False, "error": "ratelimited"})


class Stripe(Api):
    """Requests in a second and at once, over everything and for each endpoint; only why is told."""

    def limits(self, call):
        endpoint = f"{call.method} {'/'.join(call.parts[:1])}"
        return [
            ("global-rate", self.limit(FixedWindow, "global-rate", call.who), 1),
            ("global-concurrency", self.limit(Permits, "global-concurrency", call.who), 1),
            ("endpoint-rate", self.limit(FixedWindow, "endpoint-rate", call.who, endpoint), 1),
            (
                "endpoint-concurrency",
                self.limit(Permits, "endpoint-concurrency", call.who, endpoint),
                1,
            ),
        ]

    def told(self, _call, _now):
        return {"request-id": "req_judge"}

    def refuse(self, _call, name, _limit, _cost, _now):
        error = {"type": "invalid_request_error", "code": "rate_limit"}
        error["message"] = "Request rate limit exceeded."
        return Decision(name, 429, {"stripe-rate-limited-reason": name}, {"error": error})


APIS = {
    "anthropic": Anthropic,
    "discord": Discord,
    "github": GitHub,
    "openai": OpenAi,
    "slack": Slack,
    "stripe": Stripe,
}

DOCS = "https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api"


def is_version(part):
    return part[:1] == "v" and part[1:].isdigit()


def read_fields(kind, body, query):
    """The fields of a JSON object, a form or a query, as clients of these APIs write them."""
    if kind.startswith("application/json") and body:
        found = json.loads(body)
        return found if isinstance(found, dict) else {}
    form = parse_qs(body.decode(errors="replace")) if "urlencoded" in kind else {}
    return {name: values[0] for name, values in {**parse_qs(query), **form}.items()}


def tokens_of(call):
    """About four characters make a token; what may be answered counts beforehand."""
    asked = call.fields.get("max_tokens") or call.fields.get("max_completion_tokens") or 0
    return len(call.raw) // 4 + asked


def wall(now):
    """A moment of the steady clock as time since the epoch."""
    return time.time() - time.monotonic() + now


def as_go_prints(seconds):
    millis = math.ceil(seconds * 1000)
    if millis < 1000:
        return f"{millis}ms"
    minutes, rest = divmod(millis, 60_000)
    told = f"{rest / 1000:g}s"
    return f"{minutes}m{told}" if minutes else told


def up_to_millis(seconds):
    return f"{math.ceil(seconds * 1000) / 1000:.3f}"
