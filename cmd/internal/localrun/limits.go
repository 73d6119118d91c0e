package localrun

import (
	"bufio"
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"gloved.dev/cmd/internal/ui"
	"gloved.dev/policy"
)

// Limits are the six limits as the user gave them; zero members get their default.
type Limits struct {
	CPUTime, WallTime    Span
	Memory, Disk, Output Bytes
	PIDs                 uint32
}

// Defaults of the limits. Memory is bounded by half of the machine's, and disk is what
// is copied plus half of the memory: files in the sandbox are memory, and who fills /tmp
// should be told that the disk is full, not that the memory is.
const (
	DefaultCPUTime  = Span(10 * time.Minute)
	DefaultWallTime = Span(time.Hour)
	DefaultMemory   = Bytes(4 << 30)
	DefaultOutput   = Bytes(64 << 20)
	DefaultPIDs     = uint32(256)

	// reserve is what a copy must leave of the machine's free memory.
	reserve = Bytes(256 << 20)
	page    = policy.PageSize
)

// machine is how much memory the host has.
type machine struct{ total, available Bytes }

func readMachine() (machine, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return machine{}, err
	}
	defer f.Close()
	var m machine
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		kib, _ := strconv.ParseUint(fields[1], 10, 53) // zero is refused below
		switch fields[0] {
		case "MemTotal:":
			m.total = Bytes(kib << 10)
		case "MemAvailable:":
			m.available = Bytes(kib << 10)
		}
	}
	if m.total == 0 || m.available == 0 {
		return m, errors.New("/proc/meminfo does not tell the machine's memory")
	}
	return m, nil
}

// settle fills in the defaults and divides the disk: each copy gets its own size and an
// equal share of what is free, and so does scratch.
func (l Limits) settle(m machine, copies []*Mount) (policy.Limits, []string, error) {
	var notes []string
	if l.CPUTime == 0 {
		l.CPUTime = DefaultCPUTime
	}
	if l.WallTime == 0 {
		l.WallTime = DefaultWallTime
	}
	if l.PIDs == 0 {
		l.PIDs = DefaultPIDs
	}
	if l.Output == 0 {
		l.Output = DefaultOutput
	}
	if l.Memory == 0 {
		l.Memory = min(DefaultMemory, m.total/2)
	}
	var content Bytes
	for _, c := range copies {
		content += c.footprint()
	}
	free := roundDown(l.Memory / 2)
	if l.Disk == 0 {
		l.Disk = content + free
	} else {
		l.Disk = roundDown(l.Disk)
		if l.Disk < content+Bytes(len(copies)+1)*minShare {
			return policy.Limits{}, nil, tooSmall(l.Disk, content, len(copies))
		}
		if free = roundDown(l.Disk - content); free >= l.Memory {
			notes = append(notes, "what is written to disk counts as memory too: a session that fills "+
				free.String()+" of disk meets the memory limit of "+l.Memory.String()+" first")
		}
	}
	if content+reserve > m.available {
		return policy.Limits{}, nil, ui.Fail("copies_too_large",
			"the copies need "+content.String()+" and the machine has "+m.available.String()+" of memory free; copies live in memory",
			"copy less (--workspace DIR, --no-workspace), or bind it read-only with --read DIR")
	}
	share := roundDown(free / Bytes(len(copies)+1))
	for _, c := range copies {
		c.MaxBytes = c.footprint() + share
	}
	return policy.Limits{
		CPUTimeMS: millis(l.CPUTime), WallTimeMS: millis(l.WallTime), MemoryBytes: uint64(l.Memory), PIDs: l.PIDs,
		DiskBytes: uint64(l.Disk), TerminalOutputBytes: uint64(l.Output),
	}, notes, nil
}

// minShare is the least room a filesystem is given beyond what is copied into it.
const minShare = Bytes(1 << 20)

func tooSmall(disk, content Bytes, copies int) error {
	least := content + Bytes(copies+1)*minShare
	return ui.Fail("disk_limit_too_small",
		"a disk of "+disk.String()+" cannot hold the copies ("+content.String()+") and room for temporary files",
		"--disk "+strconv.FormatUint(uint64(least>>20)+1, 10)+"M or more, or copy less")
}

func millis(s Span) uint64 { return uint64(time.Duration(s).Milliseconds()) }

func roundDown(b Bytes) Bytes { return b / page * page }
