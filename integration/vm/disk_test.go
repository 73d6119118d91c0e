package vm_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"gloved.dev/internal/require"
)

// A disk is what a machine that loses its power has: it holds written blocks in a cache until it is
// told to flush, and of those that it was not told to flush it loses what it likes. It serves a guest
// over the Network Block Device protocol (fixed newstyle, NetworkBlockDevice/nbd doc/proto.md).
//
// The last part of it, behind the file system, is no storage but a line to the test: what the guest
// writes there comes out of notes, in its order among all writes. The line "cut" cuts the power
// before the next command.
type disk struct {
	socket string
	notes  chan string // the guest's lines; a line of the disk's own begins with "disk:"

	mu       sync.Mutex
	random   *rand.Rand
	stable   []byte // what survives
	cached   []byte // what the guest sees
	pending  []blockWrite
	off      bool // the power is off: nobody answers
	limit    int  // the power goes with this many more commands; 0: it does not
	serial   int  // of the connection that is powered
	partial  string
	commands struct{ writes, flushes, cuts, lost, kept int }
}

type blockWrite struct {
	block int64
	data  [blockBytes]byte
}

const (
	// blockBytes is what the disk writes whole or not at all, as disks with 4 KiB sectors do.
	blockBytes = 4096
	fsBytes    = 63 << 20
	diskBytes  = 64 << 20
	maxRequest = 4 << 20
)

// newDisk serves a fresh ext4 file system until the test ends.
func newDisk(t *testing.T, seed uint64) *disk {
	t.Helper()
	require.Tool(t, "mkfs.ext4")
	dir := t.TempDir()
	image := filepath.Join(dir, "image")
	cmd := exec.CommandContext(t.Context(), "mkfs.ext4", "-q", "-F", "-L", "gloved-vm", image, fmt.Sprintf("%dk", fsBytes>>10))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v: %s", err, out)
	}
	data, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	d := &disk{socket: filepath.Join(dir, "disk"), notes: make(chan string, 1<<16), random: rand.New(rand.NewPCG(seed, 1)), off: true,
		stable: make([]byte, diskBytes)}
	copy(d.stable, data)
	d.cached = append([]byte(nil), d.stable...)
	l, err := net.Listen("unix", d.socket)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			serving.Go(func() {
				// A killed machine resets the connection, or leaves a message half said.
				err, reset := d.serve(c), new(net.OpError)
				if err != nil && !errors.As(err, &reset) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
					d.say("disk: " + err.Error())
				}
				c.Close()
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		serving.Wait() // the guests are gone
	})
	return d
}

func (d *disk) say(line string) {
	select {
	case d.notes <- line:
	default: // nobody listens any more
	}
}

// after has the power go with the nth command from now that changes or flushes something.
func (d *disk) after(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.limit = n
}

// Lines of the disk's own.
const (
	diskOn  = "disk:on"  // a machine has it
	diskOff = "disk:off" // the power was cut as it was asked for
)

// cut takes the power away: some of what was not flushed is lost. The caller holds mu.
func (d *disk) cut() {
	if d.off {
		return
	}
	d.off, d.limit = true, 0
	d.commands.cuts++
	// Everything, nothing, or anything between: each happens.
	chance := []float64{0, 0.2, 0.5, 0.8, 1}[d.random.IntN(5)]
	for _, w := range d.pending {
		if d.random.Float64() < chance {
			copy(d.stable[w.block*blockBytes:], w.data[:])
			d.commands.kept++
		} else {
			d.commands.lost++
		}
	}
	d.pending = nil
}

// powerUp gives the disk to a new machine, and returns the serial number of that.
func (d *disk) powerUp() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cut() // whoever had it is gone
	d.serial++
	copy(d.cached, d.stable)
	d.off, d.partial = false, ""
	d.say(diskOn)
	return d.serial
}

var errOff = errors.New("the power is off")

// change makes a write, or a flush if data is nil.
func (d *disk) change(serial int, offset int64, data []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.off || serial != d.serial:
		return errOff
	case data != nil && offset >= fsBytes:
		d.note(data)
		if d.off {
			return errOff
		}
		return nil
	}
	if data == nil {
		d.commands.flushes++
	} else {
		d.commands.writes++
		copy(d.cached[offset:], data)
		for b := offset / blockBytes; b*blockBytes < offset+int64(len(data)); b++ {
			w := blockWrite{block: b}
			copy(w.data[:], d.cached[b*blockBytes:])
			d.pending = append(d.pending, w)
		}
	}
	if d.limit > 0 {
		if d.limit--; d.limit == 0 {
			d.cut()
			d.say(diskOff)
			return errOff
		}
	}
	if data == nil {
		for _, w := range d.pending {
			copy(d.stable[w.block*blockBytes:], w.data[:])
		}
		d.pending = d.pending[:0]
	}
	return nil
}

// note takes a piece of the guest's lines. The caller holds mu.
func (d *disk) note(data []byte) {
	d.partial += strings.TrimRight(string(data), "\x00")
	for {
		line, rest, found := strings.Cut(d.partial, "\n")
		if !found {
			return
		}
		d.partial = rest
		d.say(line)
		if line == "cut" {
			d.cut()
			d.say(diskOff)
			return
		}
	}
}

func (d *disk) read(serial int, offset int64, data []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.off || serial != d.serial {
		return errOff
	}
	copy(data, d.cached[offset:])
	return nil
}

// Numbers of the protocol.
const (
	nbdMagic, nbdOption, nbdOptionReply = 0x4e42444d41474943, 0x49484156454f5054, 0x3e889045565a9
	nbdRequest, nbdReply                = 0x25609513, 0x67446698
	nbdOptAbort, nbdOptInfo, nbdOptGo   = 2, 6, 7
	nbdRepAck, nbdRepInfo, nbdRepUnsup  = 1, 3, 1<<31 | 1
	nbdRead, nbdWrite, nbdQuit, nbdSync = 0, 1, 2, 3
	nbdEINVAL                           = 22
	nbdHasFlags, nbdCanFlush            = 1, 1 << 2
)

// serve talks to one machine until that, or the power, is gone.
func (d *disk) serve(c net.Conn) error {
	in := bufio.NewReaderSize(c, 64<<10)
	if err := negotiate(in, c); err != nil {
		return err
	}
	serial := d.powerUp()
	for {
		var r struct {
			Magic       uint32
			Flags, Type uint16
			Handle      uint64
			Offset      uint64
			Length      uint32
		}
		if err := binary.Read(in, binary.BigEndian, &r); err != nil {
			return err
		}
		inside := r.Length <= maxRequest && r.Offset <= diskBytes && uint64(r.Length) <= diskBytes-r.Offset
		switch {
		case r.Magic != nbdRequest || r.Length > maxRequest:
			return fmt.Errorf("not a request: %+v", r)
		case r.Type == nbdQuit:
			return nil
		}
		var data []byte
		if r.Type == nbdRead || r.Type == nbdWrite {
			data = make([]byte, r.Length)
		}
		if r.Type == nbdWrite {
			if _, err := io.ReadFull(in, data); err != nil {
				return err
			}
		}
		status, err := uint32(0), error(nil)
		switch {
		case !inside || r.Type > nbdSync:
			status = nbdEINVAL
		case r.Type == nbdRead:
			err = d.read(serial, int64(r.Offset), data)
		case r.Type == nbdWrite:
			err = d.change(serial, int64(r.Offset), data)
			data = nil
		case r.Type == nbdSync:
			err = d.change(serial, 0, nil)
		}
		if errors.Is(err, errOff) {
			_, err := io.Copy(io.Discard, in) // whatever it asks, until it is gone
			return err
		}
		if status != 0 {
			data = nil
		}
		reply := binary.BigEndian.AppendUint32(nil, nbdReply)
		reply = binary.BigEndian.AppendUint32(reply, status)
		reply = binary.BigEndian.AppendUint64(reply, r.Handle)
		if _, err := c.Write(append(reply, data...)); err != nil {
			return err
		}
	}
}

// negotiate offers the one export.
func negotiate(in io.Reader, out io.Writer) error {
	hello := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, nbdMagic), nbdOption)
	if _, err := out.Write(binary.BigEndian.AppendUint16(hello, 1|2)); err != nil { // fixed newstyle, no zeroes
		return err
	}
	var flags uint32
	if err := binary.Read(in, binary.BigEndian, &flags); err != nil {
		return err
	}
	for {
		var o struct {
			Magic          uint64
			Option, Length uint32
		}
		if err := binary.Read(in, binary.BigEndian, &o); err != nil {
			return err
		}
		if o.Magic != nbdOption || o.Length > maxRequest {
			return fmt.Errorf("not an option: %+v", o)
		}
		if _, err := io.CopyN(io.Discard, in, int64(o.Length)); err != nil {
			return err
		}
		reply := func(kind uint32, data []byte) error {
			b := binary.BigEndian.AppendUint64(nil, nbdOptionReply)
			b = binary.BigEndian.AppendUint32(b, o.Option)
			b = binary.BigEndian.AppendUint32(b, kind)
			b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
			_, err := out.Write(append(b, data...))
			return err
		}
		switch o.Option {
		case nbdOptInfo, nbdOptGo:
			export := binary.BigEndian.AppendUint64([]byte{0, 0}, diskBytes)
			export = binary.BigEndian.AppendUint16(export, nbdHasFlags|nbdCanFlush)
			sizes := []byte{0, 3}
			for _, n := range []uint32{512, blockBytes, maxRequest} {
				sizes = binary.BigEndian.AppendUint32(sizes, n)
			}
			if err := errors.Join(reply(nbdRepInfo, export), reply(nbdRepInfo, sizes), reply(nbdRepAck, nil)); err != nil {
				return err
			}
			if o.Option == nbdOptGo {
				return nil
			}
		case nbdOptAbort:
			_ = reply(nbdRepAck, nil)
			return io.EOF
		default:
			if err := reply(nbdRepUnsup, nil); err != nil {
				return err
			}
		}
	}
}

// TestDiskForgets holds the disk to what TestPower takes for granted: a cut loses what was not flushed,
// a whole block or nothing of it, and nothing else, and nobody is answered after it.
func TestDiskForgets(t *testing.T) {
	lost, kept := 0, 0
	for seed := range uint64(16) {
		d := &disk{notes: make(chan string, 16), random: rand.New(rand.NewPCG(seed, 1)), off: true,
			stable: make([]byte, diskBytes), cached: make([]byte, diskBytes)}
		me := d.powerUp()
		block := func(b byte) []byte { return bytes.Repeat([]byte{b}, blockBytes) }
		for i := range int64(8) {
			noError(t, d.change(me, i*blockBytes, block(1)))
		}
		noError(t, d.change(me, 0, nil))
		for i := range int64(8) {
			noError(t, d.change(me, i*blockBytes, block(2)))
		}
		noError(t, d.change(me, fsBytes, []byte("cu\x00")))
		if err := d.change(me, fsBytes, []byte("t\n\x00")); !errors.Is(err, errOff) {
			t.Fatalf("the cut: %v", err)
		}
		if err := d.change(me, 0, nil); !errors.Is(err, errOff) {
			t.Fatalf("a flush after the cut: %v", err)
		}
		got := make([]byte, 8*blockBytes)
		if err := d.read(me, 0, got); !errors.Is(err, errOff) {
			t.Fatalf("a read after the cut: %v", err)
		}
		next := d.powerUp()
		noError(t, d.read(next, 0, got))
		for i := range 8 {
			switch b := got[i*blockBytes : (i+1)*blockBytes]; {
			case bytes.Equal(b, block(1)):
				lost++
			case bytes.Equal(b, block(2)):
				kept++
			default:
				t.Errorf("block %d is torn", i)
			}
		}
		if err := d.change(me, 0, block(3)); !errors.Is(err, errOff) {
			t.Errorf("the machine before writes: %v", err)
		}
	}
	if lost == 0 || kept == 0 {
		t.Errorf("%d blocks lost, %d kept", lost, kept)
	}
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
