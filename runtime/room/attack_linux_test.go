package room

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/require"
	"gloved.dev/runtime/cgroup"
)

// actArgument makes the test program do one act, in the room or outside, and nothing else.
const actArgument = "act"

// act does what its text says and returns an exit code: 0 when it worked.
func act(text string) int {
	what, arg, _ := strings.Cut(text, ":")
	err := map[string]func(string) error{
		"stream": func(path string) error { return reach(path, unix.SOCK_STREAM) },
		"packet": func(path string) error { return reach(path, unix.SOCK_SEQPACKET) },
		"send to from a pair": func(path string) error {
			return fromPair(func(fd int) error { return unix.Sendto(fd, []byte("x"), 0, &unix.SockaddrUnix{Name: path}) })
		},
		"connect a pair again": func(path string) error {
			return fromPair(func(fd int) error { return unix.Connect(fd, &unix.SockaddrUnix{Name: path}) })
		},
		"connect a raw pair again": func(path string) error {
			fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_RAW, 0)
			if err != nil {
				return err
			}
			return unix.Connect(fds[0], &unix.SockaddrUnix{Name: path})
		},
		"pair": func(string) error {
			fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			return errors.Join(unix.Close(fds[0]), unix.Close(fds[1]))
		},
		"touch": touch,
	}[what](arg)
	fmt.Println(what, err)
	if err != nil {
		return 1
	}
	return 0
}

func reach(path string, kind int) error {
	fd, err := unix.Socket(unix.AF_UNIX, kind, 0)
	if err != nil {
		return err
	}
	return unix.Connect(fd, &unix.SockaddrUnix{Name: path})
}

func fromPair(then func(fd int) error) error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	return then(fds[0])
}

// touch uses so much memory, in MiB.
func touch(mebibytes string) error {
	var n int
	if _, err := fmt.Sscan(mebibytes, &n); err != nil {
		return err
	}
	data, err := unix.Mmap(-1, 0, n<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	for i := 0; i < len(data); i += 4096 {
		data[i] = 1
	}
	return nil
}

// both does an act outside and in the room.
func both(t *testing.T, o Options, text string) (insideExit int, insideOut string, outside error) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	outside = exec.Command(exe, actArgument, text).Run()
	insideExit, insideOut = insideArgv(t, o, exe, actArgument, text)
	return insideExit, insideOut, outside
}

func insideArgv(t *testing.T, o Options, argv ...string) (int, string) {
	t.Helper()
	require.Linux(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	out := make(chan string, 1)
	go func() { data, _ := io.ReadAll(r); out <- string(data) }()
	exit, err := Run(t.Context(), o, argv, null, w, w)
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	return exit, <-out
}

// TestReq119SocketsInTheWorkspace: a socket that lies in the canonical workspace leads to a process
// outside, and a read-only mount does not close it.
func TestReq119SocketsInTheWorkspace(t *testing.T) {
	o := options(t)
	for kind, acts := range map[string][]string{
		"unix":       {"stream"},
		"unixpacket": {"packet"},
		"unixgram":   {"send to from a pair", "connect a pair again", "connect a raw pair again"},
	} {
		path := filepath.Join(o.Canonical, kind)
		if kind == "unixgram" {
			c, err := net.ListenUnixgram(kind, &net.UnixAddr{Name: path, Net: kind})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
		} else {
			l, err := net.Listen(kind, path)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
		}
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
		for _, what := range acts {
			exit, out, outside := both(t, o, what+":"+path)
			if outside != nil {
				t.Errorf("%s does not work outside: %v", what, outside)
			}
			if exit != 1 || !strings.Contains(out, "permission denied") {
				t.Errorf("%s inside: exit %d, %s", what, exit, out)
			}
		}
	}
	if exit, out, _ := both(t, o, "pair"); exit != 0 {
		t.Errorf("a connected pair does not work inside: %s", out)
	}
}

// TestBoundedProcesses starts more processes than the room may have.
func TestBoundedProcesses(t *testing.T) {
	o := options(t)
	line := `mkfifo $TMPDIR/p; exec 3<>$TMPDIR/p; i=0; while [ $i -lt 100 ]; do (read x <&3) & i=$((i+1)); done; echo came; kill 0`
	o.Processes = 400
	if _, out := inside(t, o, line); !strings.Contains(out, "came") {
		t.Fatalf("with room for them they do not start: %s", out)
	}
	o.Processes = 40
	if exit, out := inside(t, o, line); exit == 0 || strings.Contains(out, "came") {
		t.Fatalf("exit %d: %s", exit, out)
	}
}

// TestBoundedMemory uses more memory than the room may have.
func TestBoundedMemory(t *testing.T) {
	o := options(t)
	host, err := cgroup.Detect()
	if err != nil {
		require.Skip(t, "this user can make no control groups: "+err.Error())
	}
	defer host.Close()
	o.Memory = 256 << 20
	if exit, out := insideArgv(t, o, mustExecutable(t), actArgument, "touch:32"); exit != 0 {
		t.Fatalf("what fits does not work: exit %d, %s", exit, out)
	}
	exit, out, outside := both(t, o, "touch:512")
	if outside != nil {
		t.Fatalf("it does not work outside: %v", outside)
	}
	if exit != 128+int(unix.SIGKILL) {
		t.Fatalf("exit %d, %s", exit, out)
	}
	if names, err := host.Names(groupPrefix); err != nil || len(names) != 0 {
		for _, name := range names {
			if strings.HasPrefix(name, fmt.Sprintf("%s%d-", groupPrefix, os.Getpid())) {
				t.Errorf("the group %s stays", name)
			}
		}
	}
}

func mustExecutable(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}
