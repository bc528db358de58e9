#!/bin/sh
# Run once by the image of PostgreSQL: a database and a user of its own for ledger, tokens and memory.
set -eu
psql --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname postgres --set password="$TIGHTLOOP_DB_PASSWORD" <<'SQL'
CREATE ROLE tightloop LOGIN PASSWORD :'password';
CREATE DATABASE tightloop OWNER tightloop;
\connect tightloop
-- Here, since it needs a superuser.
CREATE EXTENSION vector;
SQL
