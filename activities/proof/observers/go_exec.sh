#!/bin/sh
# Runs what `go test` and `go run` have built, and tells of each test of a test program. Lines as in tightloop_observer.py.
case "$1" in
*.test | *.test.exe) ;;
*) exec "$@" ;;
esac
events=${TIGHTLOOP_OBSERVE%:*} nonce=${TIGHTLOOP_OBSERVE##*:}
head="{\"n\":\"$nonce\",\"pid\":$$,\"s\":\"go.$$\",\"e\":"
said=$(mktemp) || exec "$@"
trap 'rm -f "$said"' EXIT
echo "$head\"session\",\"k\":\"go\"}" >> "$events"
"$@" -test.v=true > "$said"
code=$?
cat "$said"
package=$(printf %s "$PWD" | sed 's/["\\]/\\&/g')
for word in PASS:passed FAIL:failed SKIP:skipped; do
  sed -n "s/[\"\\\\]/\\\\&/g; s|^ *--- ${word%:*}: \\(.*\\) ([0-9.]*s)\$|$head\"test\",\"r\":\"${word#*:}\",\"id\":\"$package > \\1\"}|p" "$said"
done >> "$events"
# A test program that comes to its end says so in its last lines.
tail -n 5 "$said" | grep -q -x -E 'PASS|FAIL' && echo "$head\"finish\"}" >> "$events"
exit $code
