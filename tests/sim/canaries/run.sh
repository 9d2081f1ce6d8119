#!/bin/sh
# Proves that each check of the simulation can turn red: plants one fault after the other in a copy of the tree, builds
# the simulation there, and demands the violation that the patch names. Numbers choose: `run.sh 3 17`.
#
# A patch says in its first lines what is wrong, which invariant it breaks (Checks), what the simulation must say of it
# (Expect, an extended regular expression) and how much it may take (Runs: `life`, the kills at each effect of a life,
# or `seeds N`, five at a time until it is found).
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
work="${CANARIES:-$root/target/canaries}"
tree="$work/tree"
CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$root/target}"
# One after the other in the same place: only what a patch touches is compiled anew.
CARGO_INCREMENTAL=1
export CARGO_TARGET_DIR CARGO_INCREMENTAL
mkdir -p "$tree"
table="$work/table"
: >"$table"
missed=0

field() { sed -n "s/^$2: //p" "$1" | head -n 1; }

(cd "$root" && tar cf - --exclude=./target --exclude=./.git .) | (cd "$tree" && tar xf -)
# What an earlier run left in a file must not pass for built.
cat "$here"/*.patch | sed -n 's|^+++ b/||p' | sort -u | (cd "$tree" && xargs touch)

build() {
	(cd "$tree" && ${CARGO:-cargo} test --locked --profile sim --test sim --no-run \
		--config 'profile.sim.package.wharfline.opt-level=1') >"$work/build" 2>&1 || return 1
	program=$(sed -n 's/.*Executable tests\/sim.rs (\(.*\))$/\1/p' "$work/build")
	case "$program" in /*) ;; *) program="$tree/$program" ;; esac
	cp "$program" "$work/sim"
}

# Runs until the violation is seen; says after how much.
look() {
	: >"$work/log"
	case "$2" in
	life)
		"$work/sim" --lives >>"$work/log" 2>&1
		grep -qE "$1" "$work/log" && echo "the lives" && return 0
		;;
	seeds*)
		most=${2#seeds }
		from=1
		while [ "$from" -le "$most" ]; do
			"$work/sim" --only-seeds --seeds 5 --from "$from" >>"$work/log" 2>&1
			grep -qE "$1" "$work/log" && echo "$((from + 4)) seeds" && return 0
			from=$((from + 5))
		done
		;;
	esac
	return 1
}

for patch in "$here"/*.patch; do
	name=$(basename "$patch" .patch)
	number=$(expr "$name" : '0*\([0-9]*\)')
	case " ${*:-$number} " in *" $number "*) ;; *) continue ;; esac
	checks=$(field "$patch" Checks)
	expect=$(field "$patch" Expect)
	runs=$(field "$patch" Runs)
	if ! (cd "$tree" && patch -p1 -s -N --no-backup-if-mismatch -r - <"$patch") >"$work/applied" 2>&1; then
		verdict="DOES NOT APPLY"
		# A part may have.
		(cd "$root" && tar cf - src) | (cd "$tree" && tar xf - && find src -type f -exec touch {} +)
	else
		if ! build; then
			verdict="DOES NOT COMPILE"
		elif after=$(look "$expect" "$runs"); then
			verdict="found in $after: $(grep -m 1 -oE "($expect).{0,60}" "$work/log")"
		else
			verdict="NOT FOUND in $runs"
		fi
		(cd "$tree" && patch -p1 -s -R --no-backup-if-mismatch <"$patch")
	fi
	case "$verdict" in found*) ;; *) missed=$((missed + 1)) ;; esac
	cp "$work/log" "$work/$name.log" 2>/dev/null
	printf '%-38s %-7s %s\n' "$name" "$checks" "$verdict" | tee -a "$table"
done
echo
cat "$table"
echo "canaries that were not found: $missed"
[ "$missed" = 0 ]
