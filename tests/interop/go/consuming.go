package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// push consumes one of two tags, and gives the first message back once.
func push(s setting) (seen, error) {
	p, err := s.producer()
	if err != nil {
		return nil, err
	}
	defer p.Shutdown()
	wanted := (s.count + 1) / 2
	got, again := waitingFor(wanted), waitingFor(1)
	foreign := 0
	c, err := s.consumer(s.topic, s.group, "even", func(message *primitive.MessageExt) consumer.ConsumeResult {
		if message.GetTags() != "even" {
			foreign++
		}
		body := string(message.Body)
		if times := got.add(body); body == "tagged-0" {
			if times == 1 {
				return consumer.ConsumeRetryLater
			}
			again.add(fmt.Sprintf("%d", message.ReconsumeTimes))
		}
		return consumer.ConsumeSuccess
	}, consumer.WithConsumeMessageBatchMaxSize(1))
	if err != nil {
		return nil, err
	}
	defer c.Shutdown()
	err = s.sendAll(p, "tagged-", func(i int, message *primitive.Message) {
		message.WithTag([]string{"even", "odd"}[i%2]).WithKeys([]string{fmt.Sprintf("key-%d", i)})
	})
	if err != nil {
		return nil, err
	}
	complete, retried := got.wait(s.wait), again.wait(s.wait)
	return seen{
		"complete": complete, "bodies": len(got.bodies()), "foreign": foreign, "retried": retried,
		"reconsume_times": again.bodies(),
	}, nil
}

// order sends with sharding keys and consumes orderly: each key's messages come in order.
func order(s setting) (seen, error) {
	p, err := s.producer(producer.WithQueueSelector(producer.NewHashQueueSelector()))
	if err != nil {
		return nil, err
	}
	defer p.Shutdown()
	got := waitingFor(s.count)
	c, err := s.consumer(s.topic, s.group, "*", func(message *primitive.MessageExt) consumer.ConsumeResult {
		got.add(string(message.Body))
		return consumer.ConsumeSuccess
	}, consumer.WithConsumerOrder(true))
	if err != nil {
		return nil, err
	}
	defer c.Shutdown()
	err = s.sendAll(p, "", func(i int, message *primitive.Message) {
		key := fmt.Sprintf("key%d", i%4)
		message.WithShardingKey(key)
		message.Body = []byte(fmt.Sprintf("%s-%d", key, i))
	})
	if err != nil {
		return nil, err
	}
	complete := got.wait(s.wait)
	last, disordered := map[string]int{}, 0
	for _, body := range got.bodies() {
		var number int
		key, rest, _ := strings.Cut(body, "-")
		_, _ = fmt.Sscanf(rest, "%d", &number)
		if before, known := last[key]; known && before > number {
			disordered++
		}
		last[key] = number
	}
	return seen{"complete": complete, "keys": len(last), "disordered": disordered}, nil
}

// pull polls and acknowledges all messages; a second consumer of the group then finds none.
func pull(s setting) (seen, error) {
	p, err := s.producer()
	if err != nil {
		return nil, err
	}
	defer p.Shutdown()
	if err := s.sendAll(p, "pull-", nil); err != nil {
		return nil, err
	}
	poll := func(instance string, wanted int, limit time.Duration) (int, error) {
		c, err := rocketmq.NewPullConsumer(
			consumer.WithNsResolver(s.resolver()),
			consumer.WithGroupName(s.group),
			consumer.WithInstance(instance),
			consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		)
		if err != nil {
			return 0, err
		}
		err = c.Subscribe(s.topic, consumer.MessageSelector{Type: consumer.TAG, Expression: "*"})
		if err != nil {
			return 0, err
		}
		if err := c.Start(); err != nil {
			return 0, err
		}
		bodies := map[string]bool{}
		for end := time.Now().Add(limit); len(bodies) < wanted && time.Now().Before(end); {
			request, err := c.Poll(context.Background(), time.Second)
			if consumer.IsNoNewMsgError(err) {
				continue
			}
			if err != nil {
				return len(bodies), err
			}
			for _, message := range request.GetMsgList() {
				bodies[string(message.Body)] = true
			}
			c.ACK(context.Background(), request, consumer.ConsumeSuccess)
		}
		if err := c.PersistOffset(context.Background(), s.topic); err != nil {
			return len(bodies), err
		}
		return len(bodies), c.Shutdown()
	}
	first, err := poll("first", s.count, s.wait)
	if err != nil {
		return nil, err
	}
	second, err := poll("second", 1, 5*time.Second)
	return seen{"complete": first == s.count, "first": first, "second": second}, err
}

// trace sends and consumes with traces, and reads them from the trace topic.
func trace(s setting) (seen, error) {
	config := func() *primitive.TraceConfig {
		return &primitive.TraceConfig{
			Access: primitive.Local, Resolver: s.resolver(), TraceTopic: s.traceTopic, GroupName: s.group + "_trace",
		}
	}
	kinds := waitingFor(3) // Pub, SubBefore, SubAfter
	reader, err := s.consumer(s.traceTopic, s.group+"_reader", "*", func(message *primitive.MessageExt) consumer.ConsumeResult {
		for _, each := range strings.Split(string(message.Body), "\x02") {
			kind, rest, found := strings.Cut(each, "\x01")
			if found && (strings.Contains(rest, s.topic) || strings.HasPrefix(kind, "Sub")) {
				kinds.add(kind)
			}
		}
		return consumer.ConsumeSuccess
	})
	if err != nil {
		return nil, err
	}
	defer reader.Shutdown()
	p, err := s.producer(producer.WithTrace(config()))
	if err != nil {
		return nil, err
	}
	defer p.Shutdown()
	got := waitingFor(s.count)
	c, err := s.consumer(s.topic, s.group, "*", func(message *primitive.MessageExt) consumer.ConsumeResult {
		got.add(string(message.Body))
		return consumer.ConsumeSuccess
	}, consumer.WithTrace(config()))
	if err != nil {
		return nil, err
	}
	defer c.Shutdown()
	if err := s.sendAll(p, "traced-", nil); err != nil {
		return nil, err
	}
	complete, traced := got.wait(s.wait), kinds.wait(s.wait)
	return seen{"complete": complete, "traced": traced, "kinds": kinds.bodies()}, nil
}

// request sends requests that a consumer answers through the broker. CreateReplyMessage of this version leaves the body
// empty; every other reply gets one here.
func request(s setting) (seen, error) {
	p, err := s.producer()
	if err != nil {
		return nil, err
	}
	defer p.Shutdown()
	other := s
	other.group = s.group + "_reply"
	answering, err := other.producer(producer.WithInstanceName("answering"))
	if err != nil {
		return nil, err
	}
	defer answering.Shutdown()
	failures := make(chan error, s.count)
	c, err := s.consumer(s.topic, s.group, "*", func(message *primitive.MessageExt) consumer.ConsumeResult {
		reply, err := consumer.CreateReplyMessage(message, nil)
		if err == nil {
			if message.GetProperty("empty") == "" {
				reply.Body = append([]byte("reply to "), message.Body...)
			}
			_, err = answering.SendSync(context.Background(), reply)
		}
		if err != nil {
			failures <- err
		}
		return consumer.ConsumeSuccess
	})
	if err != nil {
		return nil, err
	}
	defer c.Shutdown()
	// The broker knows the producer from a heartbeat, which names the brokers of its topics: send something first.
	if _, err := p.SendSync(context.Background(), primitive.NewMessage(s.topic+"_warm", []byte("warm"))); err != nil {
		return nil, err
	}
	time.Sleep(2 * time.Second)
	answered, empty := 0, 0
	var last error
	for i := 0; i < s.count; i++ {
		body := fmt.Sprintf("request-%d", i)
		message := primitive.NewMessage(s.topic, []byte(body))
		if i%2 == 1 {
			message.WithProperty("empty", "true")
		}
		reply, err := p.Request(context.Background(), 10*time.Second, message)
		if err != nil {
			last = err
			continue
		}
		if string(reply.Body) == "reply to "+body {
			answered++
		} else if len(reply.Body) == 0 && i%2 == 1 {
			empty++
		}
	}
	found := seen{
		"complete": answered+empty == s.count, "answered": answered, "empty": empty, "reply_failures": len(failures),
	}
	if len(failures) > 0 {
		found["reply_failure"] = (<-failures).Error()
	}
	return found, last
}
