#!/bin/sh
# temporal-sql-tool --plugin P --endpoint H --port N --user U --database D COMMAND ...
set -eu
host=$4 port=$6 user=$8
shift 8
name=$2 command=$3
run() { PGPASSWORD=$SQL_PASSWORD psql --set ON_ERROR_STOP=1 --quiet -h "$host" -p "$port" -U "$user" -d "$1" -c "$2"; }
case $command in
create) run postgres "CREATE DATABASE $name" ;;
*) run "$name" "SELECT" ;;
esac
