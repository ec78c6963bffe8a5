# The kept shell of a box, read by bash from its stdin with the lines joined, so that errors read "bash: line 1: ...".
# Process 1 sends frames on descriptor 250: length, command, nonce. The command's output goes to 252, its end to 251
# with the nonce, which is read only after the command ran, so that the command cannot know it. The three
# descriptors are closed for whatever the command starts; its stdin is /dev/null.
shopt -s expand_aliases;
LB_status=0;
LB_set_status() { return "$LB_status"; };
while LC_ALL=C builtin read -r -N 11 -u 250 LB_frame && LC_ALL=C builtin read -r -N "$LB_frame" -u 250 LB_frame; do
case $- in *e*) ;; *) LB_set_status ;; esac;
builtin eval "$LB_frame" </dev/null >&252 2>&1 250<&- 251>&- 252>&-;
LB_status=$?;
LC_ALL=C builtin read -r -N 32 -u 250 LB_frame || builtin exit 125;
builtin printf '%s %d %s\0' "$LB_frame" "$LB_status" "$PWD" >&251;
done
