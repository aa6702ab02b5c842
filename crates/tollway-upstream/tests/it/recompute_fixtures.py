#!/usr/bin/env python3
"""Recomputes what the fixtures must say, without the program, and compares.

    crates/tollway-upstream/tests/it/recompute_fixtures.py

The table below is each API's own description of its fields: names, units, and which of them belong
together. It shares nothing with the profiles but the documentation both were written from. Compared are
the lines `dimension` and `retry after` of every `.expect`; routes and scopes are left to the reader.
"""
import datetime, email.utils, pathlib, re, sys

HERE = pathlib.Path(__file__).parent / "fixtures"
DAY = 86_400


def epoch(text, unit=1):
    return lambda now: float(text) / unit - now


def delta(text, unit=1):
    return lambda now: float(text) / unit


def iso(text):
    text = text.replace("Z", "+00:00")
    return lambda now: datetime.datetime.fromisoformat(text).timestamp() - now


def go(text):
    units = {"h": 3600, "m": 60, "s": 1, "ms": 1e-3, "us": 1e-6}
    return lambda now: sum(float(n) * units[u] for n, u in re.findall(r"([\d.]+)(ms|us|h|m|s)", text))


def any_time(text):
    """For APIs that do not say: a large number is an instant, a small one a time from now, or a date."""
    try:
        return epoch(text) if float(text) > 1e9 else delta(text)
    except ValueError:
        found = re.match(r"(\w+) (\w+) (\d+) (\d+) ([\d:]+) GMT", text)
        if found:
            text = f"{found[1]}, {found[3]} {found[2]} {found[4]} {found[5]} GMT"
        return lambda now: email.utils.parsedate_to_datetime(text).timestamp() - now


def plain(name, prefix, reset, limit="limit", remaining="remaining", at="reset"):
    return lambda h: [(name, h.get(prefix + limit), h.get(prefix + remaining), h.get(prefix + at), reset, None)]


def join(*readers):
    return lambda h: [row for reader in readers for row in reader(h)]


def used_of_size(h):
    used, _, size = h.get("x-shopify-shop-api-call-limit", "").partition("/")
    return [("requests", size, str(int(size) - int(used)), None, None, None)] if size else []


def reddit(h):
    used, left = h["x-ratelimit-used"], h["x-ratelimit-remaining"]
    return [("requests", str(int(float(used) + float(left))), left, h["x-ratelimit-reset"], delta, None)]


def riot(h):
    rows = []
    for name, field in (("application", "x-app-rate-limit"), ("method", "x-method-rate-limit")):
        pairs = zip(h.get(field, "").split(","), h.get(field + "-count", "").split(","))
        for part, (limit, used) in enumerate(pair for pair in pairs if pair[0]):
            (most, window), count = limit.split(":"), used.split(":")[0]
            label = name if part == 0 else f"{name}/{part}"
            rows.append((label, most, str(max(int(most) - int(count), 0)), None, None, int(window)))
    return rows


def hubspot(h):
    window = int(h["x-hubspot-ratelimit-interval-milliseconds"]) / 1000
    rows = [("requests", h["x-hubspot-ratelimit-max"], h["x-hubspot-ratelimit-remaining"], None, None, window)]
    if "x-hubspot-ratelimit-daily" in h:
        rows.append(("day", h["x-hubspot-ratelimit-daily"], h["x-hubspot-ratelimit-daily-remaining"], None, None, None))
    return rows


def ietf(h):
    policy, now = h.get("ratelimit-policy", ""), h.get("ratelimit", "")
    if "limit=" in now:
        found = dict(re.findall(r"(\w+)=(\d+)", now))
        return [("requests", found["limit"], found["remaining"], found["reset"], delta, int(re.search(r"w=(\d+)", policy)[1]))]
    quota = {name: (q, int(w)) for name, q, w in re.findall(r'"(\w+)";q=(\d+);w=(\d+)', policy)}
    rows = re.findall(r'"(\w+)";r=(\d+);t=(\d+)', now)
    return [("requests" if i == 0 else f"requests/{i}", quota[name][0], r, t, delta, quota[name][1])
            for i, (name, r, t) in enumerate(rows)]


def eve(h):
    rows = []
    if "x-ratelimit-group" in h:
        limit, _, window = h["x-ratelimit-limit"].partition("/")
        rows.append(("tokens", limit, h["x-ratelimit-remaining"], None, None, int(go(window)(0))))
    return rows + [("errors", None, h["x-esi-error-limit-remain"], h["x-esi-error-limit-reset"], delta, None)]


def discord(h):
    # Reset-After is preferred; Reset tells the instant beside it.
    after, at = h.get("x-ratelimit-reset-after"), h.get("x-ratelimit-reset")
    told, form = (after, delta) if after and re.fullmatch(r"[\d.]+", after) else (at, epoch)
    return [("requests", h.get("x-ratelimit-limit"), h.get("x-ratelimit-remaining"), told, form, None)]


RATELIMIT = "x-ratelimit-"
FAMILIES = {
    "discord": discord,
    "github": plain("requests", RATELIMIT, epoch), "gitlab": plain("requests", "ratelimit-", epoch),
    "heroku": plain("requests", "ratelimit-", None), "shopify": used_of_size,
    "slack": lambda h: [], "stripe": lambda h: [],
    "openai": join(*(plain(d, RATELIMIT, go, f"limit-{d}", f"remaining-{d}", f"reset-{d}") for d in ("requests", "tokens"))),
    "azure-openai": join(*(plain(d, RATELIMIT, delta, f"limit-{d}", f"remaining-{d}", f"reset-{d}") for d in ("requests", "tokens"))),
    "anthropic": join(*(plain(d, f"anthropic-ratelimit-{d}-", iso) for d in ("requests", "tokens", "input-tokens", "output-tokens"))),
    "x": join(plain("requests", "x-rate-limit-", epoch), plain("day", "x-user-limit-24hour-", epoch)),
    "reddit": reddit, "twitch": plain("points", "ratelimit-", epoch),
    "linear": join(*(plain(d, f"x-ratelimit-{d}-", lambda t: epoch(t, 1000)) for d in ("requests", "complexity"))),
    "hubspot": hubspot, "riot": riot, "jira": plain("points", RATELIMIT, iso),
    "ietf-old": plain("requests", "ratelimit-", delta), "ietf": ietf,
    "generic": plain("requests", RATELIMIT, any_time), "eve-esi": eve,
}


def read(path):
    head, _, body = path.read_text().partition("\n\n")
    lines = head.splitlines()
    headers = dict((name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines[2:]))
    now = email.utils.parsedate_to_datetime(headers["date"]).timestamp()
    return int(lines[1].split()[1]), headers, body, now


def reset_of(text, form, now):
    """Seconds to the reset; an instant where a time belongs is taken for one, nonsense for nothing."""
    if text is None or form is None:
        return None
    try:
        value = form(text)(now)
    except (ValueError, TypeError):
        return None
    if value > 1e9:
        value -= now
    return value if 0 <= value <= DAY else None


def expected(family, headers, now):
    if "age" in headers:  # From a cache: it speaks of the past.
        return []
    rows = []
    for name, limit, left, reset, form, window in FAMILIES[family](headers):
        if left is None or not re.fullmatch(r"[\d.]+", left):
            continue
        known = limit if limit and re.fullmatch(r"\d+", limit) else "?"
        rows.append((name, str(int(float(left))), known, reset_of(reset, form, now), window))
    return rows


def retry_of(family, status, headers, body, now):
    if status < 400 or family == "stripe":
        return None
    if family == "eve-esi" and status == 420:
        return float(headers["x-esi-error-limit-reset"])
    if family == "discord" and "via" in headers:
        found = re.search(r'"retry_after": ([\d.]+)', body)
        return float(found[1]) if found else None
    if "retry-after-ms" in headers:
        return float(headers["retry-after-ms"]) / 1000
    return reset_of(headers.get("retry-after"), any_time, now)


def seconds(text):
    number, unit = re.fullmatch(r"([\d.]+)(ns|µs|ms|s)", text).groups()
    return float(number) * {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1}[unit]


def said(path):
    rows, retry = [], None
    for line in path.read_text().splitlines():
        found = re.match(r"dimension +(\S+): (\d+) of (\S+) left(?:, reset in ([^ ,]+))?(?: \(at [\d.]+\))?(?:, window (\d+)s)?", line)
        if found:
            name, left, limit, reset, window = found.groups()
            rows.append((name, left, limit, seconds(reset) if reset else None, int(window) if window else None))
        if line.startswith("retry after"):
            retry = seconds(line.split()[-1])
    return rows, retry


def same(one, other):
    near = lambda a, b: a == b or None not in (a, b) and abs(a - b) < 1e-3
    return one[:3] == other[:3] and near(one[3], other[3]) and near(one[4], other[4])


def main():
    wrong, count = 0, 0
    for path in sorted(HERE.glob("*/*.http")):
        status, headers, body, now = read(path)
        rows, retry = said(path.with_suffix(".expect"))
        ours, wait = expected(path.parent.name, headers, now), retry_of(path.parent.name, status, headers, body, now)
        count += 1
        if len(rows) != len(ours) or not all(map(same, rows, ours)) or (retry or 0) - (wait or 0) > 1e-3 or (wait or 0) - (retry or 0) > 1e-3:
            wrong += 1
            print(f"{path.relative_to(HERE)}\n  says       {rows} {retry}\n  recomputed {ours} {wait}")
    print(f"{count} fixtures, {wrong} differ")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
