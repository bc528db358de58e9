#!/bin/sh
# Keys, namespace with its search attributes, tables; every step may be repeated.
set -eu
[ -e /keys/keys.json ] || tightloop keys new
tightloop setup --namespace default --retention 30
python -m tightloop_server worker ledger upgrade
