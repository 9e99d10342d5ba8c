"""Builds a host.toml, or changes an existing one."""

import json
import tomllib


def toml(value):
    """Writes a value as TOML, tables inline."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + " }"
    raise TypeError(f"no TOML for {value!r}")


class Config:
    """The tables of one host.toml, in the order in which they were added."""

    def __init__(self, name, **host):
        self.name = name
        self.host = {"name": name, **host}
        self.include = []
        self.bgp = {}
        self.tables = []

    @classmethod
    def read(cls, file):
        """Reads the tables of a file."""
        tables = tomllib.loads(file.read_text())
        config = cls(**tables.pop("host"))
        config.bgp = tables.pop("bgp", {})
        for keys in config.bgp.pop("peer", []):
            config.add("bgp.peer", **keys)
        for table, entries in tables.items():
            for keys in entries:
                config.add(table, **keys)
        return config

    def add(self, table, **keys):
        """Adds one `[[table]]`; a key with the value None is left out."""
        self.tables.append((table, {key: value for key, value in keys.items() if value is not None}))
        return self

    def rule(self, network, priority, action, *, source=None, to=None, protocol=None, ports=None):
        """Adds a `[[rule]]` (`from` is a keyword in Python)."""
        keys = {"network": network, "priority": priority, "from": source, "to": to}
        return self.add("rule", **keys, protocol=protocol, ports=ports, action=action)

    def copy(self):
        other = Config(self.name, **{key: value for key, value in self.host.items() if key != "name"})
        other.include, other.bgp = list(self.include), dict(self.bgp)
        other.tables = [(table, dict(keys)) for table, keys in self.tables]
        return other

    def without(self, table, **keys):
        """Returns a copy without those entries of `table` that have all the given keys."""
        other = self.copy()
        other.tables = [
            (name, entry)
            for name, entry in other.tables
            if name != table or any(entry.get(key) != value for key, value in keys.items())
        ]
        return other

    def entry(self, table, name):
        """Returns the keys of the entry with that name, to change in place."""
        return next(entry for kind, entry in self.tables if kind == table and entry["name"] == name)

    def text(self):
        single = [("[host]", self.host)] + ([("[bgp]", self.bgp)] if self.bgp else [])
        blocks = single + [(f"[[{table}]]", keys) for table, keys in self.tables]
        include = f"include = {toml(self.include)}\n" if self.include else ""
        return include + "\n".join(
            "\n".join([title, *(f"{key} = {toml(value)}" for key, value in keys.items()), ""])
            for title, keys in blocks
        )
