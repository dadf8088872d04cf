"""Measurements that print their numbers; `docs/performance.md` quotes them with the command."""
