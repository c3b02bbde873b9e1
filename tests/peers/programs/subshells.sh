set -eu
declare -A table
for i in {1..20000}; do table[$i]="value $i of a table that makes the heap larger"; done

for i in {1..300}; do
    got=$(table[$i]=changed; echo "${table[$((i + 1))]}" | { read -r line; (echo "$line"); })
    [ "$got" = "value $((i + 1)) of a table that makes the heap larger" ]
    [ "${table[$i]}" = "value $i of a table that makes the heap larger" ]
done

pids=()
for i in {1..40}; do
    (exit $((i % 3))) & pids+=($!)
done
sum=0
for pid in "${pids[@]}"; do
    wait "$pid" || sum=$((sum + $?))
done
[ "$sum" = 40 ]

coproc upper { while read -r line; do echo "${line^^} ${#table[@]}"; done; }
for i in {1..100}; do
    echo "line $i" >&"${upper[1]}"
    read -r got <&"${upper[0]}"
    [ "$got" = "LINE $i 20000" ]
done

seq 100000 | (sort -R | sort -n) | cmp - <(seq 100000)
echo ok
