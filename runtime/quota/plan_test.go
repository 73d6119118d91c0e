package quota

import (
	"errors"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

const page = PageBytes

func manyGrants(n int) []Grant {
	g := make([]Grant, n)
	for i := range g {
		g[i] = Grant{Alias: "a" + strconv.Itoa(i), Bytes: page}
	}
	return g
}

func TestPlan(t *testing.T) {
	cases := []struct {
		name   string
		disk   uint64
		grants []Grant
		code   string
	}{
		{"scratch alone, one page", page, nil, ""},
		{"nothing", 0, nil, CodeSize},
		{"below a page", page - 1, nil, CodeSize},
		{"a page and a byte", page + 1, nil, CodeSize},
		{"largest", MaxBytes / page * page, nil, ""},
		{"past the largest", MaxBytes + 1, nil, CodeSize},
		{"grant leaves one page", 3 * page, []Grant{{"w", 2 * page}}, ""},
		{"grant leaves nothing", 2 * page, []Grant{{"w", 2 * page}}, CodeNoScratch},
		{"grant larger than all", 2 * page, []Grant{{"w", 3 * page}}, CodeNoScratch},
		{"sum would wrap", 4 * page, []Grant{{"a", MaxBytes / page * page}, {"b", MaxBytes / page * page}}, CodeNoScratch},
		{"grant of nothing", 4 * page, []Grant{{"w", 0}}, CodeSize},
		{"grant off the page", 4 * page, []Grant{{"w", page + 1}}, CodeSize},
		{"grant past the largest", 4 * page, []Grant{{"w", MaxBytes + 1}}, CodeSize},
		{"twice the same", 4 * page, []Grant{{"w", page}, {"w", page}}, CodeAlias},
		{"scratch asked for", 4 * page, []Grant{{Scratch, page}}, CodeAlias},
		{"no alias", 4 * page, []Grant{{"", page}}, CodeAlias},
		{"most partitions", MaxPartitions * page, manyGrants(MaxPartitions - 1), ""},
		{"one partition more", (MaxPartitions + 1) * page, manyGrants(MaxPartitions), CodeTooMany},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			parts, err := Plan(c.disk, c.grants)
			if c.code != "" {
				if !errors.Is(err, &Error{Code: c.code}) {
					t.Fatalf("Plan(%d, %v) = %v, %v; want code %s", c.disk, c.grants, parts, err, c.code)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			checkParts(t, c.disk, c.grants, parts)
		})
	}
}

type fataler interface{ Fatalf(string, ...any) }

func checkParts(t fataler, disk uint64, grants []Grant, parts []Partition) {
	var sum uint64
	for _, p := range parts {
		sum += p.Bytes
		if p.Bytes == 0 || p.Bytes%page != 0 || p.Inodes < MinInodes || p.Inodes > MaxInodes {
			t.Fatalf("partition %+v", p)
		}
	}
	if sum != disk || len(parts) != len(grants)+1 || parts[len(grants)].Alias != Scratch {
		t.Fatalf("partitions %+v do not make up %d", parts, disk)
	}
	for i, g := range grants {
		if parts[i].Alias != g.Alias || parts[i].Bytes != g.Bytes {
			t.Fatalf("partition %d is %+v, want %+v", i, parts[i], g)
		}
	}
}

func TestPlanInodes(t *testing.T) {
	for bytes, want := range map[uint64]uint64{
		page:                   MinInodes,
		MinInodes * page:       MinInodes,
		(MinInodes + 1) * page: MinInodes + 1,
		MaxInodes * page:       MaxInodes,
		(MaxInodes + 1) * page: MaxInodes,
	} {
		parts, err := Plan(bytes, nil)
		want := []Partition{{Alias: Scratch, Bytes: bytes, Inodes: want}}
		if diff := cmp.Diff(want, parts); err != nil || diff != "" {
			t.Errorf("Plan(%d): %v %s", bytes, err, diff)
		}
	}
}

// Whatever is asked for, a plan either adds up or is refused.
func TestPlanProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		disk := rapid.Uint64Range(0, 64).Draw(t, "pages") * page
		sizes := rapid.SliceOfN(rapid.Uint64Range(0, 20), 0, 6).Draw(t, "grants")
		grants := make([]Grant, len(sizes))
		ok, sum := disk > 0, uint64(0)
		for i, s := range sizes {
			grants[i] = Grant{Alias: "g" + strconv.Itoa(i), Bytes: s * page}
			ok, sum = ok && s > 0, sum+s*page
		}
		parts, err := Plan(disk, grants)
		if ok = ok && sum < disk; ok != (err == nil) {
			t.Fatalf("Plan(%d, %v) = %v; want success %v", disk, grants, err, ok)
		}
		if err == nil {
			checkParts(t, disk, grants, parts)
		}
	})
}
