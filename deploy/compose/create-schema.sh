#!/bin/sh
# Makes or upgrades Temporal's own databases; every step may be repeated.
set -eu
tool() {
    temporal-sql-tool --plugin postgres12 --endpoint postgresql --port 5432 --user temporal --database "$@"
}
for pair in temporal:temporal temporal_visibility:visibility; do
    database=${pair%%:*}
    # The user's own database exists already, and an upgrade finds both.
    tool "$database" create || true
    tool "$database" setup-schema --version 0.0 || true
    tool "$database" update-schema --schema-dir "/etc/temporal/schema/postgresql/v12/${pair##*:}/versioned"
done
