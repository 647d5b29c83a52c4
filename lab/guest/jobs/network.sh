# A guest on a network: does what the host types on its console, a step for each line, until `stop`. The interface is eth0.
# Parameters: NAME (what its web server calls itself), MIB (of the file that it serves).
#
#   dhcp                   take the IPv4 address, the router and the MTU that DHCP offers
#   dhcp6                  wait for a router advertisement, take the address that DHCPv6 offers
#   address ADDRESS/LENGTH take an address by hand, without asking
#   interface MAC ADDRESS/LENGTH   another interface than eth0, by its MAC address, takes an address by hand
#   ping ADDRESS           three echo requests, all answered
#   rtt ADDRESS COUNT      echo requests, each after the last one's answer, and the mean time
#   silence ADDRESS [-I SOURCE]  three echo requests, none answered
#   arping ADDRESS         who answers ARP for the address
#   features               what driver and kernel made of the device
#   pairs COUNT            the driver uses so many queue pairs of its interface
#   serve                  a web server with /file, /name and /cgi-bin/stream?N (the file N times in a row), and iperf3's
#   mirror                 sends back whatever comes over a connection to port 7
#   iperf ADDRESS AMOUNT [OPTION...]       TCP to the server for so many seconds, or so many bytes (`4M`); `-R`: from it
#   account                what went through all interfaces so far, interrupts of virtio devices, and the processor's time (1/100 s)
#   fetch ADDRESS PATH     an HTTP transfer over one connection, and its checksum; reports `progress` when it is under way
#   daemon                 starts the softdpu that is in the guest, with /site.toml; reports as `underlay`
#   underlay               how frames get to the underlay of that softdpu, and what passed
#   crash                  kills its data plane, waits for the next one; reports as `underlay`
#   stop
INTERFACE=eth0
WEB=/tmp/www
SYSFS=/sys/class/net/$INTERFACE

# busybox's shell takes its own applets first, whatever the PATH: these are the distribution's.
ip() { /usr/sbin/ip "$@"; }
wget() { /usr/bin/wget "$@"; }

# What udhcpc and dhclient call with what they were given: it is put in place, and noted for the report.
cat >/tmp/udhcpc <<'SCRIPT'
#!/bin/sh
[ "$1" = bound ] || exit 0
ip address add "$ip/$mask" dev "$interface" && ip link set dev "$interface" mtu "$mtu" && ip route add default via "$router" || exit
echo "address=$ip/$mask gateway=$router mtu=$mtu dns=${dns:-none} server=$serverid lease=$lease" >/tmp/lease
SCRIPT
cat >/tmp/dhclient <<'SCRIPT'
#!/bin/sh
case $reason in BOUND6 | RENEW6 | REBIND6) ;; *) exit 0 ;; esac
/usr/sbin/ip -6 address add "$new_ip6_address/128" dev "$interface" nodad || exit
echo "address=$new_ip6_address dns=${new_dhcp6_name_servers:-none}" >/tmp/lease6
SCRIPT
chmod 755 /tmp/udhcpc /tmp/dhclient

# until_true COMMAND...: half a minute is enough for anything that the network does by itself, on a machine that is busy, too.
until_true() {
    for _ in $(seq 300); do
        if "$@"; then return; fi
        sleep 0.1
    done
    echo "waited 30 s in vain for: $*"
    return 1
}

dhcp() {
    ip link set dev $INTERFACE up &&
        busybox udhcpc -i $INTERFACE -f -n -q -t 10 -T 1 -O mtu -s /tmp/udhcpc && detail "$(cat /tmp/lease)"
}

# An address is tentative during duplicate address detection.
link_local() { ip -6 address show dev $INTERFACE scope link | grep inet6 | grep -qv tentative; }
advertised() { ip -6 route show default dev $INTERFACE | grep -q 'proto ra'; }
dhcp6() {
    ip link set dev $INTERFACE up && until_true link_local && until_true advertised &&
        dhclient -6 -1 -sf /tmp/dhclient -lf /tmp/leases6 -pf /tmp/dhclient.pid $INTERFACE && [ -s /tmp/lease6 ] && detail "$(cat /tmp/lease6)" &&
        detail "gateway=$(ip -6 route show default dev $INTERFACE | awk '{ print $3; exit }')" \
            "mtu=$(cat /proc/sys/net/ipv6/conf/$INTERFACE/mtu)"
}

address() { ip link set dev $INTERFACE up && ip address add "$1" dev $INTERFACE; }
interface() {
    for folder in /sys/class/net/*; do
        [ "$(cat "$folder/address")" = "$1" ] || continue
        ip link set dev "${folder##*/}" up && ip address add "$2" dev "${folder##*/}"
        return
    done
    echo "no interface has the address $1"
    return 1
}

ping() { busybox ping -c 3 -i 0.3 -W 10 "$1" >/tmp/ping; code=$?; cat /tmp/ping; grep -q ' 0% packet loss' /tmp/ping && detail "$(sed -n 's|^round-trip.*= [^/]*/\([^/]*\)/.*|rtt_ms=\1|p' /tmp/ping)"; return $code; }
rtt() { busybox ping -A -q -c "$2" -W 10 "$1" >/tmp/ping; code=$?; cat /tmp/ping; detail "$(sed -n 's|^round-trip.*= [^/]*/\([^/]*\)/.*|rtt_ms=\1|p' /tmp/ping)"; return $code; }
silence() { busybox ping -c 3 -i 0.3 -W 1 "$@" >/tmp/ping; cat /tmp/ping; grep -q ' 100% packet loss' /tmp/ping; }
arping() { busybox arping -c 1 -w 10 -I $INTERFACE "$1" >/tmp/arping; cat /tmp/arping; detail "mac=$(sed -n 's/.*\[\(.*\)\].*/\1/p' /tmp/arping | tr A-F a-f)"; grep -q 'Received 1 response' /tmp/arping; }

# feature NUMBER: whether driver and device agreed on a virtio feature.
feature() { cut -c "$(($1 + 1))" $SYSFS/device/features; }
features() {
    ethtool -k $INTERFACE >/tmp/features || return
    for name in tx-checksumming rx-checksumming scatter-gather tcp-segmentation-offload tx-tcp6-segmentation generic-receive-offload; do
        detail "$name=$(sed -n "s/^[[:space:]]*$name: \([a-z]*\).*/\1/p" /tmp/features)"
    done
    detail "packed=$(feature 34) mergeable=$(feature 15) queues=$(ls -d $SYSFS/queues/rx-* | wc -l) mtu=$(cat $SYSFS/mtu) mac=$(cat $SYSFS/address)"
}

pairs() { ethtool -L $INTERFACE combined "$1" && [ "$(ethtool -l $INTERFACE | awk '/^Combined/ { now = $2 } END { print now }')" = "$1" ]; }

serve() {
    mkdir -p $WEB/cgi-bin && echo "$NAME" >$WEB/name && busybox dd if=/dev/urandom of=$WEB/file bs=1M count="$MIB" || return
    {
        echo '#!/bin/sh'
        echo 'printf "Content-Type: application/octet-stream\r\n\r\n"'
        echo "for _ in \$(seq \"\$QUERY_STRING\"); do cat $WEB/file; done"
    } >$WEB/cgi-bin/stream
    chmod 755 $WEB/cgi-bin/stream
    busybox httpd -p 80 -h $WEB && iperf3 -s -D && detail "mib=$MIB sum=$(sha256sum <$WEB/file | cut -d ' ' -f 1)"
}

listens() { grep -q ":$1 .* 0A " /proc/net/tcp /proc/net/tcp6; }
mirror() { busybox nc -ll -p 7 -e busybox cat & until_true listens 0007; }

iperf() {
    server=$1 amount=$2
    shift 2
    case $amount in
    *[KMG]) length=-n ;;
    *) length=-t ;;
    esac
    iperf3 -c "$server" "$length" "$amount" -f m --connect-timeout 20000 "$@" >/tmp/iperf 2>&1 || { cat /tmp/iperf; return 1; }
    # Of several connections the last line is the sum.
    detail "mbits=$(awk '$NF == "receiver" { mbits = int($(NF - 2)) } END { print mbits }' /tmp/iperf)" \
        "retransmits=$(awk '$NF == "sender" { sent = $(NF - 1) } END { print sent }' /tmp/iperf)"
}

account() {
    for name in rx_packets tx_packets rx_bytes tx_bytes; do
        sum=0
        for folder in /sys/class/net/*; do [ "${folder##*/}" = lo ] || sum=$((sum + $(cat "$folder/statistics/$name"))); done
        detail "$name=$sum"
    done
    detail "interrupts=$(awk '/virtio/ { sum += $2 } END { print sum + 0 }' /proc/interrupts)" \
        "$(awk '$1 == "cpu" { print "user=" $2 + $3, "system=" $4, "idle=" $5 + $6, "irq=" $7, "softirq=" $8 }' /proc/stat)"
}

received() { cat $SYSFS/statistics/rx_bytes; }
fetch() {
    rm -f /tmp/failed /tmp/done
    start=$(received)
    {
        { wget -nv -t 1 -T 60 -O - "http://$1/$2" || echo wget >/tmp/failed; } | sha256sum | cut -d ' ' -f 1 >/tmp/sum
        : >/tmp/done
    } &
    while [ ! -e /tmp/done ] && [ $(($(received) - start)) -lt 1000000 ]; do sleep 0.05; done
    report progress ok >/dev/console
    wait
    [ ! -e /tmp/failed ] && detail "sum=$(cat /tmp/sum) received=$(($(received) - start))"
}

said() { /usr/sbin/softdpu status --json >/tmp/status 2>/tmp/status.error || { cat /tmp/status.error; return 1; }; }
# Of its data plane; and of the way to the underlay, which is there when it is open.
plane() { said && sed -n "s/.*\"data_plane\":{[^}]*\"$1\":\([0-9]*\).*/\1/p" /tmp/status; }
path() { sed -n 's/.*"path":{\([^}]*\)}.*/\1/p' /tmp/status | tr -d '"' | tr ',:' ' ='; }
carries() { said && [ -n "$(path)" ] && grep -q '"data_plane":{[^}]*"state":"running"' /tmp/status; }
underlay() {
    said && detail "$(path)" "$(sed -n 's/.*"underlay":{.*"frames_in":\([0-9]*\),"frames_out":\([0-9]*\).*/frames_in=\1 frames_out=\2/p' /tmp/status)" \
        "restarts=$(plane restarts)"
}
daemon() {
    /usr/sbin/softdpu run /site.toml >/tmp/softdpu.log 2>&1 &
    until_true carries && underlay || { cat /tmp/softdpu.log; return 1; }
}
is_another() { [ "$(plane restarts)" -gt "$1" ] && carries; }
crash() {
    restarts=$(plane restarts)
    kill -9 "$(plane pid)" && until_true is_another "$restarts" && underlay || { cat /tmp/softdpu.log; return 1; }
}

# A guest's own address is reached through lo.
step ready ip link set dev lo up
while read -r command arguments <&3; do
    case $command in
        stop) break ;;
        # shellcheck disable=SC2086
        *) step "$command" "$command" $arguments </dev/null ;;
    esac
done 3</dev/console
