package sandbox

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"gloved.dev/internal/require"
)

func TestMain(m *testing.M) {
	Main()
	if role := os.Getenv(helperEnv); role != "" {
		os.Exit(runHelper(role))
	}
	if require.Later("it starts itself hundreds of times, which the race detector makes slow") {
		return
	}
	os.Exit(m.Run())
}

// testUID is the host uid sessions map to in root mode; nobody else uses it.
const testUID = 165000

// config returns a Config for the mode the test process runs in.
func config(t testing.TB, argv ...string) Config {
	t.Helper()
	uid := uint32(0) // in a user namespace, 0 is the daemon's own uid
	if rootMode() {
		uid = testUID
	}
	c := Config{
		Tenant: Tenant{HostUID: uid, HostGID: uid, DropGroups: rootMode()},
		Argv:   argv, WorkDir: InsideHome,
		Env: []string{
			"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + InsideHome, "TERM=xterm-256color",
			"LANG=C.UTF-8", "USER=" + InsideUser,
		},
	}
	for _, target := range []string{"/tmp", "/var/tmp", InsideHome} {
		c.Mounts = append(c.Mounts, Mount{
			Name: strings.TrimPrefix(target, "/"), Target: target, Exec: true,
			FD: scratch(t, uid, "mode=0700"),
		})
	}
	c.Mounts = append(c.Mounts, Mount{Name: "shm", Target: shmTarget, FD: scratch(t, uid, "mode=1777")})
	return c
}

// rootMode reports whether the test runs as the host's root, as opposed to root of
// a user namespace of one id.
func rootMode() bool {
	data, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && strings.Contains(string(data), "4294967295")
}

// scratch makes a detached tmpfs owned by uid.
func scratch(t testing.TB, uid uint32, mode string) *os.File {
	t.Helper()
	id := itoa(int(uid))
	_, perm, _ := strings.Cut(mode, "=")
	fd, err := newFS("tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV,
		[2]string{"size", "64m"}, [2]string{"mode", perm}, [2]string{"uid", id}, [2]string{"gid", id})
	if err != nil {
		t.Fatalf("scratch tmpfs: %v", err)
	}
	f := os.NewFile(uintptr(fd), "scratch")
	t.Cleanup(func() { f.Close() })
	return f
}

// outcome is what a session run to its end leaves.
type outcome struct {
	exit   Exit
	output string
	report Report
}

// run starts, releases, drains and waits.
func run(t testing.TB, c Config) outcome {
	t.Helper()
	s := start(t, c)
	out := drain(s)
	if err := s.Release(); err != nil {
		t.Fatalf("Release: %v", err)
	}
	exit := wait(t, s)
	return outcome{exit, <-out, s.Report()}
}

func start(t testing.TB, c Config) *Session {
	t.Helper()
	s, err := Start(t.Context(), c, Hooks{})
	if err != nil {
		t.Fatalf("Start: %v", err)
	}
	t.Cleanup(func() {
		s.Terminal().Close()
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// drain reads the terminal to its end.
func drain(s *Session) <-chan string {
	out := make(chan string, 1)
	go func() {
		var b bytes.Buffer
		_, err := io.Copy(&b, s.Terminal())
		if err != nil && !errors.Is(err, syscall.EIO) && !errors.Is(err, os.ErrClosed) {
			b.WriteString("\n[drain: " + err.Error() + "]")
		}
		out <- strings.ReplaceAll(b.String(), "\r\n", "\n")
	}()
	return out
}

func wait(t testing.TB, s *Session) Exit {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	exit, err := s.Wait(ctx)
	if err != nil {
		t.Fatalf("Wait: %v", err)
	}
	return exit
}

func shell(t testing.TB, script string) Config { return config(t, "/bin/sh", "-c", script) }

func bigScratch(t testing.TB, uid uint32) *os.File {
	t.Helper()
	id := itoa(int(uid))
	fd, err := newFS("tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV,
		[2]string{"size", "512m"}, [2]string{"mode", "0700"}, [2]string{"uid", id}, [2]string{"gid", id})
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "scratch")
	t.Cleanup(func() { f.Close() })
	return f
}

func setSize(t testing.TB, s *Session, rows, cols uint16) {
	t.Helper()
	if err := pty.Setsize(s.Terminal(), &pty.Winsize{Rows: rows, Cols: cols}); err != nil {
		t.Fatal(err)
	}
}

func BenchmarkStartToExit(b *testing.B) {
	for b.Loop() {
		c := config(b, "/bin/true")
		s, err := Start(b.Context(), c, Hooks{})
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Release(); err != nil {
			b.Fatal(err)
		}
		wait(b, s)
		s.Terminal().Close()
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		for _, m := range c.Mounts {
			m.FD.Close()
		}
	}
}
