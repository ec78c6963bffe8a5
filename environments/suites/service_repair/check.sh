#!/bin/bash
# Prints the first thing that is wrong below this folder and exits 1; prints 'ok' and exits 0 when nothing is.
# What is wanted stands in `spec`, one line each: app, what to look at, its name, the value.
# An app with a file cache/ok was found good before and is not looked at again: the last line then says so.
cd "${0%/*}" || exit 2

fail() { echo "check: $1"; exit 1; }

declare -A value mode digest
moded=() summed=()

# The `key = value` or `key=value` lines of file $1.
load() {
  [[ -f $1 ]] || fail "$1: missing"
  value=()
  local rows row
  mapfile -t rows < "$1"
  for row in "${rows[@]//[[:space:]]/}"; do [[ $row == ?*=* ]] && value[${row%%=*}]=${row#*=}; done
}

# The entries of a flat JSON object of numbers in file $1.
load_json() {
  [[ -f $1 ]] || fail "$1: missing"
  value=()
  local text entry form='^\{"[a-z]+":[0-9]+(,"[a-z]+":[0-9]+)*\}$' IFS=,
  read -r -d '' text < "$1"
  text=${text//[[:space:]]/}
  [[ $text =~ $form ]] || fail "$1: not valid JSON"
  for entry in ${text//[\{\}\"]/}; do value[${entry%:*}]=${entry#*:}; done
}

ini() {
  load "$1/app.ini"
  [[ ${value[$2]+x} ]] || fail "$1/app.ini: $2 missing"
  [[ ${value[$2]} == "$3" ]] || fail "$1/app.ini: $2 is ${value[$2]}, want $3"
}

json() {
  load_json "$1/app.json"
  [[ ${value[$2]-} == "$3" ]] || fail "$1/app.json: $2 is ${value[$2]-missing}, want $3"
}

# The same number in app.ini and app.json.
both() {
  load "$1/app.ini"
  local here=${value[$2]-}
  load_json "$1/app.json"
  [[ $here == "$3" && ${value[$2]-} == "$3" ]] || fail "$1: $2 ports differ, want $3"
}

env() {
  load "$1/env"
  [[ ${value[$2]+x} ]] || fail "$1/env: $2 missing, want $2=$3"
  [[ ${value[$2]} == "$3" ]] || fail "$1/env: $2 is ${value[$2]}, want $2=$3"
}

mode() {
  [[ -f $1/$2 ]] || fail "$1/$2: missing"
  [[ ${mode[$1/$2]} == "$3" ]] || fail "$1/$2: mode is ${mode[$1/$2]}, want $3"
}

dir() { [[ -d $1/$2 ]] || fail "$1/$2: no such directory"; }

file() { [[ -f $1/$2 ]] || fail "$1/$2: missing"; }

# A link to the newest release.
link() {
  [[ -d $1/$2 ]] || fail "$1/$2: dangling link"
  [[ $1/$2 -ef $1/$3 ]] || fail "$1/$2: not the newest release"
}

# Data beside its checksum; `spec` knows the number of rows and the digest.
data() {
  file "$1" "data/$2"
  file "$1" "data/$2.sum"
  local stated rows want_rows=${3%%:*}
  read -r stated _ < "$1/data/$2.sum"
  [[ $stated == "${digest[$1/data/$2]}" ]] || fail "$1/data/$2: checksum differs"
  mapfile -t rows < "$1/data/$2"
  (( ${#rows[@]} == want_rows )) || fail "$1/data/$2: ${#rows[@]} rows, want $want_rows"
  [[ $stated == "${3#*:}" ]] || fail "$1/data/$2: rows are not those of spec"
}

lines() {
  file "$1" "$2"
  local all
  mapfile -t all < "$1/$2"
  (( ${#all[@]} == $3 )) || fail "$1/$2: ${#all[@]} lines, want $3"
}

# A program that must start.
start() {
  file "$1" "$2"
  [[ -x $1/$2 ]] || fail "$1/$2: not executable"
  mode "$1" "$2" "$3"
  "$1/$2" > /dev/null 2>&1 || fail "$1/$2: exit $?"
}

mapfile -t wanted < spec
for line in "${wanted[@]}"; do
  set -- $line
  case $2 in
    mode | start) moded+=("$1/$3") ;;
    data) summed+=("$1/data/$3") ;;
  esac
done
while read -r bits path; do mode[$path]=$bits; done < <(stat -c '%a %n' -- "${moded[@]}" 2> /dev/null)
while read -r sum path; do digest[$path]=$sum; done < <(sha256sum -- "${summed[@]}" 2> /dev/null)

cached=
for line in "${wanted[@]}"; do
  set -- $line
  if [[ -e $1/cache/ok ]]; then cached=${cached:-$1}; else "$2" "$1" "$3" "${4-}"; fi
done

if [[ $cached ]]; then echo "ok (cached) $cached"; else echo ok; fi
