package sandbox

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"gloved.dev/internal/require"
)

// system finds a program as the session's PATH would, on the part of the host that
// comes along.
func system(t testing.TB, name string) string {
	t.Helper()
	for _, dir := range []string{"/usr/local/bin/", "/usr/bin/", "/bin/"} {
		if _, err := os.Stat(dir + name); err == nil {
			return dir + name
		}
	}
	require.Skip(t, name+" is not installed under /usr")
	return ""
}

// TestPrograms runs real programs at what sandboxes are known to break.
func TestPrograms(t *testing.T) {
	needRoom(t)
	for _, row := range []struct{ name, needs, script, want string }{
		{"tty", "tty", `tty; stty size`, "/dev/pts/0\n24 80\n"},
		{"job control", "bash", `bash -ic 'set -m; sleep 30 & jobs -r | wc -l; kill %1; wait %1; echo $?' 2>/dev/null`, "1\n143\n"},
		{"root listing", "ls", `ls -d /usr /home/agent | cat; ls / >/dev/null && echo listed`, "/home/agent\n/usr\nlisted\n"},
		{"git", "git", `cd && git init -q r && cd r && git config user.name a && git config user.email a@b &&
			echo x >f && git add f && git commit -qm m && git --no-pager log --format=%s`, "m\n"},
		{"tmux", "tmux", `tmux -f /dev/null new-session -d -s a 'echo in $(tty); sleep 30' && tmux ls -F '#{session_name}' && tmux kill-server`, "a\n"},
		{"script", "script", `script -qc tty /dev/null`, "/dev/pts/1\n"},
		{"vim", "vim", `vim -u NONE -es -c 'normal ihello' -c 'wq! out' </dev/null; cat out`, "hello\n"},
		{"python pool", "python3", `python3 -c 'from concurrent.futures import ProcessPoolExecutor as P
with P(2) as p: print(sum(p.map(abs, [-1, -2])))'`, "3\n"},
		{"asyncio", "python3", `python3 -c 'import asyncio, threading
async def main():
    loop = asyncio.get_running_loop(); f = loop.create_future()
    threading.Thread(target=lambda: loop.call_soon_threadsafe(f.set_result, 7)).start()
    print(await f)
asyncio.run(main())'`, "7\n"},
		{"unix sockets", "python3", `python3 -c 'import socket, array
for k in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
    a, b = socket.socketpair(socket.AF_UNIX, k); a.send(b"x"); print(b.recv(1).decode(), end="")
socket.send_fds(a, [b"y"], [0]); print(len(socket.recv_fds(b, 1, 1)[1]))'`, "xxx1\n"},
		{"thread name", "python3", `python3 -c 'import threading, time, os
e = threading.Event(); t = threading.Thread(target=e.wait); t.start()
open(f"/proc/self/task/{t.native_id}/comm", "w").write("renamed"); print(open(f"/proc/self/task/{t.native_id}/comm").read().strip()); e.set()'`, "renamed\n"},
		{"node child", "node", `node -e 'console.log(require("child_process").execFileSync("/bin/echo", ["hi"]).toString().trim())'`, "hi\n"},
		{"node worker", "node", `node -e 'const {Worker} = require("worker_threads"); new Worker("require(\"worker_threads\").parentPort.postMessage(5)", {eval: true}).on("message", m => console.log(String(m)))'`, "5\n"},
		{"node interfaces", "node", `node -e 'console.log(Object.keys(require("os").networkInterfaces()).join())'`, "lo\n"},
		{"masked proc", "sh", `cat /proc/keys /proc/timer_list 2>/dev/null | wc -c; ls /etc/machine-id /etc/shadow 2>/dev/null | wc -l`, "0\n0\n"},
	} {
		t.Run(row.name, func(t *testing.T) {
			system(t, row.needs)
			got := run(t, shell(t, row.script))
			if got.output != row.want || got.exit != (Exit{}) {
				t.Errorf("output %q, exit %+v; want %q", got.output, got.exit, row.want)
			}
		})
	}
}

// TestWindowChange resizes the terminal under a program that waits for it.
func TestWindowChange(t *testing.T) {
	needRoom(t)
	system(t, "bash")
	c := config(t, system(t, "bash"), "-c", `trap 'stty size; exit 3' WINCH; stty size; while :; do sleep 0.01; done`)
	c.Rows, c.Cols = 43, 132
	s := start(t, c)
	lines := bufio.NewReader(s.Terminal())
	if err := s.Release(); err != nil {
		t.Fatal(err)
	}
	// The size was right before the first byte.
	if line, err := lines.ReadString('\n'); err != nil || line != "43 132\r\n" {
		t.Fatalf("first line %q, %v; want 43 132", line, err)
	}
	setSize(t, s, 50, 100)
	if line, err := lines.ReadString('\n'); err != nil || line != "50 100\r\n" {
		t.Errorf("line after the change %q, %v; want 50 100", line, err)
	}
	if exit := wait(t, s); exit != (Exit{Code: 3}) {
		t.Errorf("exit = %+v, want 3", exit)
	}
}

// TestGoBuild compiles and runs a program inside.
func TestGoBuild(t *testing.T) {
	if testing.Short() {
		t.Skip("a whole build")
	}
	needRoom(t)
	if _, err := exec.LookPath("/usr/local/go/bin/go"); err != nil {
		require.Skip(t, "no Go under /usr/local")
	}
	c := shell(t, `cd && mkdir p && cd p && printf 'module p\ngo 1.21\n' >go.mod &&
		printf 'package main\nfunc main() { println("built") }\n' >m.go && GOFLAGS=-mod=mod GOTOOLCHAIN=local GOPROXY=off CGO_ENABLED=0 /usr/local/go/bin/go run .`)
	for i := range c.Mounts {
		if c.Mounts[i].Target != shmTarget {
			c.Mounts[i].FD = bigScratch(t, c.HostUID)
		}
	}
	if got := run(t, c); got.output != "built\n" {
		t.Errorf("output %q, exit %+v", got.output, got.exit)
	}
}

// TestSystemPathBelowTheHolder: the new root lies over a directory of the host until it
// takes over; what is below that directory can be brought along all the same.
func TestSystemPathBelowTheHolder(t *testing.T) {
	needRoom(t)
	for _, holder := range rootHolders {
		dir, err := os.MkdirTemp(holder, "gloved-system-")
		if err != nil {
			continue // a user's test may not write there
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(filepath.Join(dir, "known"), []byte("content"), 0o644),
			os.Symlink("known", filepath.Join(dir, "link"))); err != nil {
			t.Fatal(err)
		}
		c := shell(t, "cat "+dir+"/known "+dir+"/link")
		c.Mounts = slices.DeleteFunc(c.Mounts, func(m Mount) bool { return m.Target == holder }) // it would hide it
		c.SystemPaths = []string{dir}
		if out := run(t, c); out.output != "contentcontent" {
			t.Errorf("below %s: %q, %+v", holder, out.output, out.exit)
		}
	}
}
