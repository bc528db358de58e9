#!/bin/sh
# Runs what `cargo test` and `cargo run` have built, and tells of each test of a test program. Lines as in
# tightloop_observer.py.
case "$1" in
*/deps/*) ;;
*) exec "$@" ;;
esac
events=${TIGHTLOOP_OBSERVE%:*} nonce=${TIGHTLOOP_OBSERVE##*:}
head="{\"n\":\"$nonce\",\"pid\":$$,\"s\":\"cargo.$$\",\"e\":"
# Without the digest behind its name.
target=$(basename "$1" | sed 's/-[0-9a-f]\{16\}$//')
said=$(mktemp) || exec "$@"
trap 'rm -f "$said"' EXIT
# The short form has no names.
case " $* " in
*" --quiet "* | *" -q "*) set -- "$@" --format=pretty ;;
esac
"$@" > "$said"
code=$?
cat "$said"
# A target can have a program of its own in the place of Rust's.
grep -q -x 'running [0-9]* tests*' "$said" || exit $code
echo "$head\"session\",\"k\":\"cargo\"}" >> "$events"
for word in ok:passed FAILED:failed ignored:skipped; do
  sed -n "s/[\"\\\\]/\\\\&/g; s/ - should panic / /; s|^test \\(.*\\) \\.\\.\\. ${word%:*}\\(, .*\\)*\$|$head\"test\",\"r\":\"${word#*:}\",\"id\":\"$target > \\1\"}|p" "$said"
done >> "$events"
# A test program that comes to its end says so in its last lines.
tail -n 5 "$said" | grep -q -E '^test result: (ok|FAILED)\.' && echo "$head\"finish\"}" >> "$events"
exit $code
