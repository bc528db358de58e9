#!/bin/sh
# Does at its first start what the official image does: the superuser and its database, then the scripts that are mounted.
set -eu
if [ ! -e "$PGDATA/PG_VERSION" ]; then
    echo "$POSTGRES_PASSWORD" >/tmp/password
    initdb --encoding UTF8 --username "$POSTGRES_USER" --pwfile /tmp/password --auth-local trust --auth-host scram-sha-256
    rm /tmp/password
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    pg_ctl --wait --options "-c listen_addresses='' -k /tmp" start
    createdb --host /tmp --username "$POSTGRES_USER" "$POSTGRES_USER"
    for script in /docker-entrypoint-initdb.d/*.sh; do
        PGHOST=/tmp sh "$script"
    done
    pg_ctl --wait --mode fast stop
fi
exec postgres -c "listen_addresses=*" -k /tmp
