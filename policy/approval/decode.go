package approval

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// A decoder reads the tree of values into a Policy and keeps the first fault.
// Every mapping is closed: a key nobody reads is a policy that somebody believes
// is in force.
type decoder struct{ failed *Failure }

func (d *decoder) fail(v value, where, format string, args ...any) {
	if d.failed == nil {
		d.failed = &Failure{Code: CodeSchema, Where: where, Line: v.line, Detail: fmt.Sprintf(format, args...)}
	}
}

// A field reads one key of a mapping.
type field struct {
	required bool
	read     func(v value, where string)
}

// object reads a closed mapping.
func (d *decoder) object(v value, where string, fields map[string]field) {
	if v.kind != isMap {
		d.fail(v, where, "it must be a mapping")
		return
	}
	seen := map[string]bool{}
	for _, p := range v.pairs {
		f, known := fields[p.key]
		if !known {
			d.fail(p.value, within(where, p.key), "no such key; keys here: %s", strings.Join(sortedKeys(fields), ", "))
			return
		}
		seen[p.key] = true
		f.read(p.value, within(where, p.key))
	}
	for _, name := range sortedKeys(fields) {
		if fields[name].required && !seen[name] {
			d.fail(v, where, "the key %s is required", name)
		}
	}
}

func within(where, key string) string {
	if where == "" {
		return key
	}
	return where + "." + key
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// each reads an open mapping whose keys are names.
func (d *decoder) each(v value, where string, name func(string) bool, read func(key string, v value, where string)) {
	if v.kind != isMap {
		d.fail(v, where, "it must be a mapping")
		return
	}
	for _, p := range v.pairs {
		if !name(p.key) {
			d.fail(p.value, where, "%q is no name for a key here", p.key)
			return
		}
		read(p.key, p.value, within(where, p.key))
	}
}

func (d *decoder) text(into *string) field {
	return field{read: func(v value, where string) {
		s, ok := v.scalar.(string)
		if v.kind != isScalar || !ok || s == "" {
			d.fail(v, where, "it must be a non-empty string; quote what looks like a number")
			return
		}
		*into = s
	}}
}

func (d *decoder) word(into *string, set ...string) field {
	return field{read: func(v value, where string) {
		s, ok := v.scalar.(string)
		if v.kind != isScalar || !ok || !slices.Contains(set, s) {
			d.fail(v, where, "it must be one of: %s", strings.Join(set, ", "))
			return
		}
		*into = s
	}}
}

func (d *decoder) duration(into *time.Duration) field {
	return field{read: func(v value, where string) {
		s, _ := v.scalar.(string)
		t, ok := parseDuration(s)
		if v.kind != isScalar || !ok {
			d.fail(v, where, "it must be a duration: one whole number and one of ms, s, m, h, d, w, such as 24h")
			return
		}
		*into = t
	}}
}

func (d *decoder) envName(into *string) field {
	return field{read: func(v value, where string) {
		s, _ := v.scalar.(string)
		if v.kind != isScalar || !envName.MatchString(s) {
			d.fail(v, where, "it must name an environment variable")
			return
		}
		*into = s
	}}
}

// number reads a number that ok accepts; what says which those are.
func (d *decoder) number(into *float64, ok func(float64) bool, what string) field {
	return field{read: func(v value, where string) {
		f, is := v.scalar.(float64)
		if v.kind != isScalar || !is || !ok(f) {
			d.fail(v, where, "it must be %s", what)
			return
		}
		*into = f
	}}
}

func (d *decoder) flag(into *bool) field {
	return field{read: func(v value, where string) {
		b, ok := v.scalar.(bool)
		if v.kind != isScalar || !ok {
			d.fail(v, where, "it must be true or false")
			return
		}
		*into = b
	}}
}

// names reads a non-empty list of different non-empty strings.
func (d *decoder) names(into *[]string, valid func(string) bool) field {
	return field{read: func(v value, where string) {
		if v.kind != isList || len(v.list) == 0 {
			d.fail(v, where, "it must be a list with at least one entry")
			return
		}
		for _, item := range v.list {
			s, ok := item.scalar.(string)
			if item.kind != isScalar || !ok || s == "" || !valid(s) || slices.Contains(*into, s) {
				d.fail(item, where, "its entries must be different, non-empty names")
				return
			}
			*into = append(*into, s)
		}
	}}
}

func positive(f float64) bool { return f > 0 }

func positiveInt(f float64) bool { return f > 0 && f == float64(int64(f)) && f <= 1<<53 }

func proportion(f float64) bool { return f >= 0 && f <= 1 }

// decode reads a whole policy.
func decode(v value) (*Policy, *Failure) {
	d := &decoder{}
	p := &Policy{Default: Manual, TokenDelivery: DeliverManual,
		Approvers: map[string]Approver{}, Channels: map[string]Channel{}}
	version := d.text(&p.Version)
	version.required = true
	d.object(v, "", map[string]field{
		"version":           version,
		"defaults":          {read: func(v value, where string) { d.defaults(v, where, p) }},
		"payload_retention": d.duration(&p.Retention),
		"protected_paths":   {read: func(v value, where string) { d.protected(v, where, p) }},
		"approvers":         {read: func(v value, where string) { d.approvers(v, where, p) }},
		"classes":           {read: func(v value, where string) { d.classes(v, where, p) }},
		"budgets":           {read: func(v value, where string) { d.budgets(v, where, p) }},
		"audit":             {read: func(v value, where string) { d.audit(v, where, p) }},
		"vault": {read: func(v value, where string) {
			d.object(v, where, map[string]field{"passphrase_env": d.envName(&p.VaultEnv)})
		}},
		"channels": {read: func(v value, where string) { d.channels(v, where, p) }},
	})
	if d.failed == nil {
		d.routeFloor(v, p)
	}
	if d.failed != nil {
		return nil, d.failed
	}
	return p, nil
}

func (d *decoder) defaults(v value, where string, p *Policy) {
	var autonomy, delivery string
	d.object(v, where, map[string]field{
		"autonomy":       d.word(&autonomy, string(HumanOnly), string(Manual), supervised, string(SupervisedRetro), string(Autonomous)),
		"channel":        d.text(&p.Channel),
		"approval_ttl":   d.duration(&p.TTL),
		"on_expiry":      d.word(&p.OnExpiry, "reject"),
		"token_delivery": d.word(&delivery, string(DeliverManual), string(DeliverSealed)),
	})
	if autonomy != "" {
		p.Default = autonomyOf(autonomy)
	}
	if delivery != "" {
		p.TokenDelivery = TokenDelivery(delivery)
	}
}

func autonomyOf(word string) Autonomy {
	if word == supervised {
		return SupervisedRetro
	}
	return Autonomy(word)
}

func (d *decoder) protected(v value, where string, p *Policy) {
	if v.kind != isList {
		d.fail(v, where, "it must be a list")
		return
	}
	for i, item := range v.list {
		r := Route{Class: ClassPolicyEdit}
		at := fmt.Sprintf("%s[%d]", where, i)
		if item.kind == isMap {
			path, class := d.text(&r.Path), d.text(&r.Class)
			path.required, class.required = true, true
			d.object(item, at, map[string]field{"path": path, "class": class})
			if d.failed == nil && !subClass.MatchString(r.Class) {
				d.fail(item, at+".class", "it must be policy.edit. and one lowercase word")
			}
		} else {
			r.Path, _ = item.scalar.(string)
		}
		if !protectedPath(r.Path) {
			d.fail(item, at, "it must be a path inside the repository, without wildcards; a folder ends in /")
			return
		}
		if slices.Contains(p.Protected, r) {
			d.fail(item, at, "the same entry twice")
			return
		}
		p.Protected = append(p.Protected, r)
	}
}

func (d *decoder) approvers(v value, where string, p *Policy) {
	d.each(v, where, identifier.MatchString, func(id string, v value, where string) {
		var a Approver
		channels := d.names(&a.Channels, func(string) bool { return true })
		channels.required = true
		d.object(v, where, map[string]field{"channels": channels})
		p.Approvers[id] = a
	})
}

func (d *decoder) classes(v value, where string, p *Policy) {
	d.each(v, where, classPattern.MatchString, func(pattern string, v value, where string) {
		r := Rule{Pattern: pattern, Line: v.line}
		var word string
		autonomy := d.word(&word, string(HumanOnly), string(Manual), string(SupervisedLive), supervised,
			string(SupervisedRetro), string(Autonomous))
		autonomy.required = true
		rate := func(f float64) bool { return f > 0 && f <= 1 }
		d.object(v, where, map[string]field{
			"autonomy":           autonomy,
			"approvers":          d.names(&r.Approvers, identifier.MatchString),
			"limits":             {read: func(v value, where string) { r.Limits = d.limits(v, where) }},
			"live_rate":          d.number(&r.LiveRate, rate, "above 0 and at most 1"),
			"retro_rate":         d.number(&r.RetroRate, rate, "above 0 and at most 1"),
			"allow_irreversible": d.flag(&r.AllowIrreversible),
		})
		r.Autonomy = autonomyOf(word)
		switch live := r.Autonomy == SupervisedLive; {
		case live && r.LiveRate == 0:
			d.fail(v, where, "supervised-live needs a live_rate")
		case !live && r.LiveRate != 0:
			d.fail(v, where, "live_rate is for supervised-live alone")
		case r.Autonomy != SupervisedRetro && r.RetroRate != 0:
			d.fail(v, where, "retro_rate is for supervised-retro alone")
		}
		p.Rules = append(p.Rules, r)
	})
}

// limits reads a rule's limits: any name is valid, a name without a meaning
// fails every budget later.
func (d *decoder) limits(v value, where string) []Limit {
	var out []Limit
	d.each(v, where, identifier.MatchString, func(name string, v value, where string) {
		l := Limit{Name: name}
		ok, what := positive, "a number above 0"
		if name == LimitMaxPending || name == LimitRequestsPerHour {
			ok, what = positiveInt, "a whole number above 0"
		}
		d.number(&l.Value, ok, what).read(v, where)
		out = append(out, l)
	})
	slices.SortFunc(out, func(a, b Limit) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func (d *decoder) budgets(v value, where string, p *Policy) {
	any := func(name string) bool { return name != "" }
	d.each(v, where, any, func(scope string, v value, where string) {
		b := Budget{Scope: scope}
		read := func(name string, ok func(float64) bool, what string) field {
			return field{read: func(v value, where string) {
				l := Limit{Name: name}
				d.number(&l.Value, ok, what).read(v, where)
				b.Limits = append(b.Limits, l)
			}}
		}
		d.object(v, where, map[string]field{
			LimitDailyUSD:     read(LimitDailyUSD, positive, "a number above 0"),
			LimitDailyActions: read(LimitDailyActions, positiveInt, "a whole number above 0"),
			LimitMaxPending:   read(LimitMaxPending, positiveInt, "a whole number above 0"),
		})
		if len(b.Limits) == 0 {
			d.fail(v, where, "a budget needs at least one limit")
		}
		slices.SortFunc(b.Limits, func(a, b Limit) int { return strings.Compare(a.Name, b.Name) })
		p.Budgets = append(p.Budgets, b)
	})
	slices.SortFunc(p.Budgets, func(a, b Budget) int { return strings.Compare(a.Scope, b.Scope) })
}

func (d *decoder) audit(v value, where string, p *Policy) {
	d.object(v, where, map[string]field{
		"supervised_sample_rate": d.number(&p.Audit.SampleRate, proportion, "from 0 to 1"),
		"sampling_secret_env":    d.envName(&p.Audit.SecretEnv),
		"skew_tolerance":         d.duration(&p.Audit.SkewTolerance),
	})
}

func (d *decoder) channels(v value, where string, p *Policy) {
	any := func(name string) bool { return name != "" }
	d.each(v, where, any, func(name string, v value, where string) {
		var c Channel
		switch name {
		case "telegram":
			d.object(v, where, map[string]field{"chat_id_env": d.envName(&c.ChatIDEnv), "token_env": d.envName(&c.TokenEnv)})
		case "web":
			var port float64
			d.object(v, where, map[string]field{"port": d.number(&port, func(f float64) bool {
				return positiveInt(f) && f <= 65535
			}, "a port from 1 to 65535")})
			c.Port = int(port)
		default: // other channels belong to other programs
			if v.kind != isMap {
				d.fail(v, where, "it must be a mapping")
			}
		}
		p.Channels[name] = c
	})
}
