#!/usr/bin/env bash
# Samples the nodes of a job beside its ranks. When the ranks have ended well, it prints the use of GPUs
# and cores. launch/moments.sh calls these functions. It runs watch_beside_launch in a process of its own,
# and ends that after the ranks, before it calls watch_after_launch.
# shellcheck disable=SC2154 # the submit script sets hosts and code

watch_check_settings() {
    [[ $MEASURE_EVERY =~ ^(0|[1-9][0-9]*)$ ]] ||
        die "MEASURE_EVERY='$MEASURE_EVERY': expected whole seconds; 0: nothing is measured"
}

watch_before_launch() { rm -f "$RUN_DIR/use.txt"; } # of an earlier start in the same folder

# Every MEASURE_EVERY seconds, summary.py asks the nodes what their GPUs and ranks do. It writes use.txt
# when it is ended. A job without it, as a shorter one, has no summary.
watch_beside_launch() {
    [[ $MEASURE_EVERY != 0 ]] && type -P python3 >/dev/null || return 0
    sleep "$MEASURE_EVERY"
    exec python3 -B "$PROJECT_DIR/extras/watch/summary.py" --every "$MEASURE_EVERY" \
        --file "$RUN_DIR/use.txt" "$SLURM_JOB_ID" "${hosts[@]}" &>/dev/null
}

watch_after_launch() {
    if ((code == 0)) && [[ -e $RUN_DIR/use.txt ]]; then
        cat "$RUN_DIR/use.txt"
    fi
}
