package approval

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Provenances of a Resolution: where its autonomy comes from.
const (
	FromRule       = "rule"
	FromDefault    = "default"
	FromInherited  = "inherited"   // a policy.edit.<word> without a rule of its own
	FromFloor      = "floor"       // raised because nothing can take the action back
	FromFailClosed = "fail-closed" // there is no policy
)

// Reasons why a Resolution needs a person.
const (
	BecauseRule    = "matched-rule"
	BecauseFloor   = "irreversibility-floor"
	BecauseFailure = "load-failure"
)

// A Candidate is a rule whose pattern matches the class.
type Candidate struct {
	Pattern     string      `json:"pattern"`
	Specificity Specificity `json:"specificity"`
	Autonomy    Autonomy    `json:"autonomy"`
	Winner      bool        `json:"winner"`
	// TieBreak is what made it win or lose: specificity, strictest-autonomy,
	// lexicographic, or tied-specificity; "" when it was alone.
	TieBreak string `json:"tieBreak,omitzero"`
	Line     int    `json:"line,omitzero"`
}

// A Specificity ranks a pattern: literal segments, wildcards, segments.
type Specificity [3]int

// compare orders the more specific first.
func (s Specificity) compare(o Specificity) int {
	return cmp.Or(cmp.Compare(o[0], s[0]), cmp.Compare(s[1], o[1]), cmp.Compare(o[2], s[2]))
}

// A Resolution is what a policy decides for one class.
type Resolution struct {
	Class      string
	Autonomy   Autonomy
	Approvers  []string // nil: any human may grant
	Limits     []Limit
	Provenance string
	Pattern    string // of the rule that decided, "" without one
	Candidates []Candidate
	Steps      []string // how it came about, for people
	// AllowIrreversible says that every rule that tied for most specific opts
	// out of the floor.
	AllowIrreversible bool
	Failure           *Failure // with FromFailClosed
}

// NeedsPerson reports whether an action of the class waits for a grant, or is
// not for agents at all (HumanOnly).
func (r Resolution) NeedsPerson() bool { return r.Autonomy.NeedsPerson() }

// ManualBecause is one of the Because constants, "" when no person is needed.
func (r Resolution) ManualBecause() string {
	switch {
	case !r.NeedsPerson():
		return ""
	case r.Provenance == FromFailClosed:
		return BecauseFailure
	case r.Provenance == FromFloor:
		return BecauseFloor
	}
	return BecauseRule
}

// Resolve decides for a concrete class. reversible is what the action declares:
// false raises everything to Manual unless the policy opts out, nil (unstated)
// and true do not. It never fails: on a nil policy, and for a class that is
// none, the answer is Manual.
func (p *Policy) Resolve(class string, reversible *bool) Resolution {
	if p == nil {
		return Resolution{Class: class, Autonomy: Manual, Provenance: FromFailClosed,
			Steps: []string{"there is no valid policy: every class is manual"}}
	}
	r := p.match(class)
	irreversible := reversible != nil && !*reversible
	switch {
	case !irreversible:
	case r.NeedsPerson():
		r.step("the action cannot be taken back; %s covers that already", r.Autonomy)
	case r.AllowIrreversible:
		r.step("the action cannot be taken back, and every deciding rule has allow_irreversible")
	default:
		r.step("the action cannot be taken back: %s becomes manual", r.Autonomy)
		r.Autonomy, r.Provenance = Manual, FromFloor
	}
	return r
}

func (r *Resolution) step(format string, args ...any) {
	r.Steps = append(r.Steps, fmt.Sprintf(format, args...))
}

// match resolves without the floor.
func (p *Policy) match(class string) Resolution {
	r := p.matchRules(class)
	if inherited, ok := p.inherit(class, r); ok {
		return inherited
	}
	return r
}

// inherit gives a sub-class of policy.edit without a rule of its own what
// policy.edit has. A rule of its own is any that names the sub-class or reaches
// it by a wildcard below policy.edit; one that reaches it otherwise still counts
// where it is stricter.
func (p *Policy) inherit(class string, own Resolution) (Resolution, bool) {
	if !subClass.MatchString(class) || strings.HasPrefix(own.Pattern, ClassPolicyEdit+".") {
		return Resolution{}, false
	}
	r := p.matchRules(ClassPolicyEdit)
	if r.Pattern == "" || own.Pattern != "" && own.Autonomy.StricterThan(r.Autonomy) {
		return Resolution{}, false
	}
	r.Class, r.Provenance = class, FromInherited
	r.step("%s has no rule of its own and inherits that of %s", class, ClassPolicyEdit)
	return r, true
}

func (p *Policy) matchRules(class string) Resolution {
	r := Resolution{Class: class, Autonomy: p.Default, Provenance: FromDefault}
	var matching []Rule
	for _, rule := range p.Rules {
		if Matches(rule.Pattern, class) {
			matching = append(matching, rule)
		}
	}
	if len(matching) == 0 {
		r.step("no rule matches %s: defaults.autonomy is %s", class, p.Default)
		return r
	}
	slices.SortFunc(matching, precedence)
	won := matching[0]
	best := specificity(won.Pattern)
	r.AllowIrreversible = true
	for i, rule := range matching {
		s := specificity(rule.Pattern)
		tied := s == best
		if tied {
			r.AllowIrreversible = r.AllowIrreversible && rule.AllowIrreversible
		}
		r.Candidates = append(r.Candidates, Candidate{
			Pattern: rule.Pattern, Specificity: s, Autonomy: rule.Autonomy, Winner: i == 0, Line: rule.Line,
			TieBreak: tieBreak(matching, i, tied),
		})
	}
	r.Autonomy, r.Provenance, r.Pattern = won.Autonomy, FromRule, won.Pattern
	r.Approvers, r.Limits = won.Approvers, won.Limits
	r.step("%d of %d rules match %s", len(matching), len(p.Rules), class)
	r.step("%s decides (%s): %s", won.Pattern, reasonWon(r.Candidates), won.Autonomy)
	return r
}

// precedence orders matching rules, the deciding one first.
func precedence(a, b Rule) int {
	return cmp.Or(specificity(a.Pattern).compare(specificity(b.Pattern)),
		cmp.Compare(strictness[b.Autonomy], strictness[a.Autonomy]),
		strings.Compare(a.Pattern, b.Pattern))
}

// tieBreak names what separated candidate i from the winner, or the winner from
// the runner-up.
func tieBreak(sorted []Rule, i int, tied bool) string {
	if len(sorted) == 1 {
		return ""
	}
	if i == 0 {
		next := sorted[1]
		switch {
		case specificity(next.Pattern) != specificity(sorted[0].Pattern):
			return "specificity"
		case next.Autonomy != sorted[0].Autonomy:
			return "strictest-autonomy"
		}
		return "lexicographic"
	}
	if tied {
		return "tied-specificity"
	}
	return "specificity"
}

func reasonWon(all []Candidate) string {
	if all[0].TieBreak == "" {
		return "the only match"
	}
	return all[0].TieBreak
}

// specificity ranks a pattern.
func specificity(pattern string) Specificity {
	segments := strings.Split(pattern, ".")
	wild := 0
	for _, s := range segments {
		if s == "*" {
			wild++
		}
	}
	return Specificity{len(segments) - wild, wild, len(segments)}
}

// Matches reports whether a class pattern covers a concrete class. "*" is
// exactly one segment; at the end of a longer pattern it is one or more.
func Matches(pattern, class string) bool {
	want, have := strings.Split(pattern, "."), strings.Split(class, ".")
	open := len(want) > 1 && want[len(want)-1] == "*"
	if len(have) < len(want) || len(have) > len(want) && !open {
		return false
	}
	for i, w := range want {
		if w != "*" && w != have[i] {
			return false
		}
	}
	return true
}
