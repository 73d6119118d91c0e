package escape

import (
	"encoding/binary"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"

	"gloved.dev/runtime/monitor"
)

// networkAttempts reach for a peer outside: over the host's loopback, over sockets that have a name
// or a path, and for the families that reach past both.
func networkAttempts() []attempt {
	const noFamily = "EAFNOSUPPORT"
	return []attempt{
		{name: "network: connect to the host's loopback", refused: noFamily, lacking: "ENOENT", act: func(f *facts) error {
			if f.Port4 == 0 {
				return unix.ENOENT
			}
			return connects(unix.AF_INET, &unix.SockaddrInet4{Port: f.Port4, Addr: [4]byte{127, 0, 0, 1}})
		}},
		{name: "network: connect to the host's loopback by IPv6", refused: noFamily, lacking: "ENOENT", act: func(f *facts) error {
			if f.Port6 == 0 {
				return unix.ENOENT
			}
			return connects(unix.AF_INET6, &unix.SockaddrInet6{Port: f.Port6, Addr: [16]byte{15: 1}})
		}},
		{name: "network: send a datagram", refused: noFamily, act: func(*facts) error { return sockets(unix.AF_INET, unix.SOCK_DGRAM, 0) }},
		{name: "network: connect to an abstract socket of the host", refused: "ECONNREFUSED EPERM",
			act: func(f *facts) error { return connects(unix.AF_UNIX, &unix.SockaddrUnix{Name: "@" + f.Name}) }},
		{name: "network: connect to a socket on the host's path", refused: notThere,
			act: func(f *facts) error { return connects(unix.AF_UNIX, &unix.SockaddrUnix{Name: f.Socket}) }},
		{name: "network: connect to the monitor of the other session", refused: notThere, act: func(f *facts) error {
			return connects(unix.AF_UNIX, &unix.SockaddrUnix{Name: filepath.Join(f.Other, monitor.SocketName)})
		}},
		{name: "network: connect to one's own monitor", refused: notThere, act: func(f *facts) error {
			return connects(unix.AF_UNIX, &unix.SockaddrUnix{Name: filepath.Join(f.own(), monitor.SocketName)})
		}},
		{name: "network: connect to a container engine", refused: notThere, lacking: "ENOENT",
			act: func(*facts) error { return connects(unix.AF_UNIX, &unix.SockaddrUnix{Name: "/run/docker.sock"}) }},
		{name: "network: send to the system's log", refused: notThere, lacking: "ENOENT ECONNREFUSED EPROTOTYPE",
			act: func(*facts) error { return connects(unix.AF_UNIX, &unix.SockaddrUnix{Name: "/dev/log"}) }},
		{name: "network: claim another's credentials", refused: "EPERM EINVAL", act: claimsCredentials},
		{name: "network: raw IP", refused: noFamily, act: func(*facts) error { return sockets(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP) }},
		{name: "network: raw packets", refused: noFamily, lacking: noFamily, act: func(*facts) error { return sockets(unix.AF_PACKET, unix.SOCK_RAW, 0) }},
		{name: "network: the hypervisor", refused: noFamily, lacking: noFamily, act: func(*facts) error { return sockets(unix.AF_VSOCK, unix.SOCK_STREAM, 0) }},
		{name: "network: the kernel's ciphers", refused: noFamily, lacking: noFamily, act: func(*facts) error { return sockets(unix.AF_ALG, unix.SOCK_SEQPACKET, 0) }},
		{name: "network: bluetooth", refused: noFamily, lacking: noFamily, act: func(*facts) error { return sockets(unix.AF_BLUETOOTH, unix.SOCK_RAW, 1) }},
		{name: "network: a pair of another family", refused: noFamily, lacking: noFamily + " ENOTSUP EOPNOTSUPP EPROTONOSUPPORT", act: func(*facts) error {
			fds, err := unix.Socketpair(unix.AF_TIPC, unix.SOCK_DGRAM, 0)
			if err != nil {
				return err
			}
			unix.Close(fds[0])
			return unix.Close(fds[1])
		}},
		{name: "network: kernel events", refused: noFamily, act: netlink(unix.NETLINK_KOBJECT_UEVENT)},
		{name: "network: the audit log", refused: noFamily, lacking: "EPROTONOSUPPORT", act: netlink(unix.NETLINK_AUDIT)},
		{name: "network: the packet filter", refused: noFamily, lacking: "EPROTONOSUPPORT", act: netlink(unix.NETLINK_NETFILTER)},
		{name: "network: socket tables", refused: noFamily, lacking: "EPROTONOSUPPORT", act: netlink(unix.NETLINK_SOCK_DIAG)},
		{name: "network: generic netlink", refused: noFamily, act: netlink(unix.NETLINK_GENERIC)},
		{name: "network: change an interface", refused: denied, act: changesLink},
	}
}

func sockets(family, kind, protocol int) error {
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func netlink(protocol int) func(*facts) error {
	return func(*facts) error { return sockets(unix.AF_NETLINK, unix.SOCK_RAW, protocol) }
}

// connects tries streams and, where the socket is of another kind, datagrams.
func connects(family int, to unix.Sockaddr) error {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Connect(fd, to)
}

// claimsCredentials sends a message as pid 1 and root.
func claimsCredentials(*facts) error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return said("no-pair")
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	return unix.Sendmsg(fds[0], []byte("x"), unix.UnixCredentials(&unix.Ucred{Pid: 1}), nil, 0)
}

// changesLink asks for lo to be changed in no way.
func changesLink(*facts) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var m [unix.SizeofNlMsghdr + unix.SizeofIfInfomsg]byte
	*(*unix.NlMsghdr)(unsafe.Pointer(&m[0])) = unix.NlMsghdr{Len: uint32(len(m)), Type: unix.RTM_NEWLINK,
		Flags: unix.NLM_F_REQUEST | unix.NLM_F_ACK, Seq: 1}
	*(*unix.IfInfomsg)(unsafe.Pointer(&m[unix.SizeofNlMsghdr])) = unix.IfInfomsg{Index: 1}
	if err := unix.Sendto(fd, m[:], 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	var answer [4096]byte
	n, _, err := unix.Recvfrom(fd, answer[:], 0)
	if err != nil {
		return err
	}
	if n < unix.SizeofNlMsghdr+4 {
		return said("short-answer")
	}
	return orNil(unix.Errno(-int32(binary.NativeEndian.Uint32(answer[unix.SizeofNlMsghdr:]))))
}
