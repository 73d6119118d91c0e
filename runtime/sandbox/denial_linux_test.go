package sandbox

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"gloved.dev/internal/require"
)

// TestDenials tries each act outside, where it must work, and inside, where it must
// not. An act that does not work outside proves nothing and is skipped by name.
func TestDenials(t *testing.T) {
	needRoom(t)
	if !rootMode() {
		require.Environment(t, require.RealRoot) // the acts are proved outside as root
	}
	secret := t.TempDir() + "/secret"
	if err := os.WriteFile(secret, []byte("host-secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	const python = `python3 -c '`
	for _, row := range []struct{ name, needs, act string }{
		{"read a host file", "cat", "cat " + secret},
		{"read a user's file", "cat", "cat /etc/shadow"},
		{"read the machine id", "cat", "cat /etc/machine-id"},
		{"see sysfs", "ls", "ls /sys/kernel"},
		{"see a host process", "sh", "test -d /proc/" + itoa(os.Getpid()) + "/task"},
		{"signal a host process", "sh", "kill -0 " + itoa(os.Getpid())},
		{"make a user namespace", "unshare", "unshare -U true"},
		{"make a mount namespace", "unshare", "unshare -m true"},
		{"mount", "unshare", "unshare -m mount -t tmpfs none /mnt"},
		{"mount read-write again", "unshare", "unshare -m mount -o remount,rw,bind /usr 2>/dev/null || unshare -m sh -c 'mount --bind /usr /usr && mount -o remount,bind,rw /usr'"},
		{"nested sandbox", "bwrap", "bwrap --ro-bind / / true"},
		{"change root", "python3", python + `import os; os.chroot("/")'`},
		{"internet socket", "python3", python + `import socket; socket.socket()'`},
		{"internet six socket", "python3", python + `import socket; socket.socket(socket.AF_INET6)'`},
		{"raw packets", "python3", python + `import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)'`},
		{"uevents", "python3", python + `import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15)'`},
		{"device node", "mknod", "cd && rm -f probe-node && mknod probe-node c 1 3; s=$?; rm -f probe-node; exit $s"},
		{"become root", "python3", python + `import os; os.setresuid(0,0,0)'`},
		{"become another user", "python3", python + `import os; os.setresuid(65534,65534,65534)'`},
		{"lower the nice value", "nice", "nice -n -5 true 2>&1 | grep -q . && exit 1; exit 0"},
		{"set the host name", "python3", python + `import socket; socket.sethostname(socket.gethostname())'`},
		{"write a sysctl", "tee", "cat /proc/sys/kernel/domainname | tee /proc/sys/kernel/domainname"},
		{"write to usr", "touch", "touch /usr/.gloved-denial && rm /usr/.gloved-denial"},
		{"kernel log", "dmesg", "dmesg"},
		{"trace", "strace", "strace -o /dev/null true"},
	} {
		t.Run(row.name, func(t *testing.T) {
			system(t, row.needs)
			cmd := exec.Command("/bin/sh", "-c", row.act)
			cmd.Env = config(t, "/x").Env
			cmd.Env = append(cmd.Env, "HOME="+t.TempDir())
			if out, err := cmd.CombinedOutput(); err != nil {
				require.Skip(t, "does not work outside either: "+strings.TrimSpace(string(out)))
			}
			if got := run(t, shell(t, row.act)); got.exit == (Exit{}) {
				t.Errorf("works inside: %q", got.output)
			}
		})
	}
}

// TestMounts attaches grants of every kind and tries to cross them.
func TestMounts(t *testing.T) {
	needRoom(t)
	dir, err := os.MkdirTemp("/tmp", "gloved-sandbox-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	tool := dir + "/tool"
	if err := os.WriteFile(tool, []byte("#!/bin/sh\necho tool ran\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	grant := func(path string, readOnly bool) *os.File {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		tree, err := OpenTree(f, readOnly)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { tree.Close() })
		return tree
	}
	c := shell(t, `/opt/tool; cat /data/tool | head -1; touch /data/x 2>/dev/null || echo refused; /data/tool; echo $?; touch /work/a/b; ls /work/a; ls /etc/extra`)
	c.Mounts = append(c.Mounts,
		Mount{Name: "exe", Target: "/opt/tool", FD: grant(tool, true), ReadOnly: true, File: true, Exec: true},
		Mount{Name: "data", Target: "/data", FD: grant(dir, true), ReadOnly: true},
		Mount{Name: "work", Target: "/work", FD: scratch(t, c.HostUID, "mode=0700")},
		Mount{Name: "nested", Target: "/work/a", FD: scratch(t, c.HostUID, "mode=0700")},
		Mount{Name: "extra", Target: "/etc/extra", FD: grant(tool, true), ReadOnly: true, File: true},
	)
	got := run(t, c)
	want := "tool ran\n#!/bin/sh\nrefused\n"
	if !strings.HasPrefix(got.output, want) || !strings.Contains(got.output, "Permission denied\n126\nb\n/etc/extra\n") {
		t.Errorf("output %q", got.output)
	}

	t.Run("file as directory", func(t *testing.T) {
		c := shell(t, "exit 0")
		c.Mounts = append(c.Mounts, Mount{Name: "exe", Target: "/opt/tool", FD: grant(tool, true)})
		failing(t, c, Hooks{}, stepMounts)
	})
	t.Run("target through a link", func(t *testing.T) {
		c := shell(t, "exit 0")
		c.Mounts = append(c.Mounts, Mount{Name: "m", Target: "/var/run/x", FD: scratch(t, c.HostUID, "mode=0700")})
		failing(t, c, Hooks{}, stepMounts)
	})
	t.Run("target on the host", func(t *testing.T) {
		c := shell(t, "exit 0")
		c.Mounts = append(c.Mounts, Mount{Name: "m", Target: "/usr/gloved-no-such", FD: scratch(t, c.HostUID, "mode=0700")})
		failing(t, c, Hooks{}, stepMounts)
		if _, err := os.Lstat("/usr/gloved-no-such"); err == nil {
			t.Error("a directory was made on the host")
		}
	})
}

func TestSealedExe(t *testing.T) {
	f, err := SealedExe()
	if err != nil {
		t.Fatal(err)
	}
	if !isSealed(f) {
		t.Error("the copy is not sealed")
	}
	// It can be opened for writing while it is not running; writing must fail, and
	// so must cutting it short.
	w, err := os.OpenFile(fdPath(int(f.Fd())), os.O_WRONLY, 0)
	if err == nil {
		if _, err := w.Write([]byte{0}); err == nil {
			t.Error("the copy can be written")
		}
		if err := w.Truncate(0); err == nil {
			t.Error("the copy can be truncated")
		}
		w.Close() // an open writer would keep it from being executed
	}
	again, err := SealedExe()
	if err != nil || again != f {
		t.Errorf("second call made another copy: %v", err)
	}
}

// TestReport checks what goes into the receipt.
func TestReport(t *testing.T) {
	needRoom(t)
	r := run(t, shell(t, "exit 0")).report
	if len(r.SeccompDigest) != 64 || len(r.ProbeDigest) != 64 || len(r.Probes) < 12 {
		t.Errorf("report = %+v", r)
	}
	for _, p := range r.Probes {
		if !p.Refused {
			t.Errorf("probe %s: %s", p.Name, p.Answer)
		}
	}
}
