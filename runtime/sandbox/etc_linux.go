package sandbox

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// etcFiles are the files of /etc that are made up. Nothing in them comes from the
// host; in particular there is no machine-id, which would tell sessions of one
// machine together.
func etcFiles(hostname string) map[string]string {
	id := strconv.Itoa(InsideUID) + ":" + strconv.Itoa(InsideGID)
	return map[string]string{
		"passwd": InsideUser + ":x:" + id + ":agent:" + InsideHome + ":/bin/sh\n" +
			"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
		"group": InsideUser + ":x:" + strconv.Itoa(InsideGID) + ":\n" + "nogroup:x:65534:\n",
		"hosts": "127.0.0.1 localhost " + hostname + "\n::1 localhost ip6-localhost ip6-loopback\n",
		// With no server named, a resolver would try 127.0.0.1 and wait; one attempt
		// of one second is the least it can be told.
		"resolv.conf": "options timeout:1 attempts:1\n",
		"hostname":    hostname + "\n",
	}
}

func (b *builder) writeEtc() error {
	etc, err := b.target("/etc", false)
	if err != nil {
		return err
	}
	defer unix.Close(etc)
	for name, text := range etcFiles(b.spec.Hostname) {
		if err := writeAt(etc, name, text); err != nil {
			return at("/etc/"+name, err)
		}
	}
	return unix.Symlinkat("/proc/self/mounts", etc, "mtab")
}

func writeAt(dir int, name, text string) error {
	fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o444)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	n, err := unix.Write(fd, []byte(text))
	if err == nil && n < len(text) {
		err = unix.ENOSPC
	}
	return err
}
